package desired_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	framework "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/test/kit"
)

// objectSource lists and watches objects that a test holds.
type objectSource struct {
	*framework.FakeControllerSource
}

func (objectSource) IsWatchListSemanticsUnSupported() bool { return true }

// memoryCache is a cache of the fixed kinds without an apiserver.
type memoryCache struct {
	cache.Cache // nil: the engine calls no other method for fixed kinds

	sources   map[string]objectSource
	informers map[string]toolscache.SharedIndexInformer
}

func typeName(o client.Object) string {
	return fmt.Sprintf("%T %s", o, o.GetObjectKind().GroupVersionKind())
}

func (c *memoryCache) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer, ok := c.informers[typeName(o)]
	if !ok {
		return nil, fmt.Errorf("no informer of %s", typeName(o))
	}
	return informer, nil
}

// newMemoryCache creates a cache; the returned function follows the sources until the test ends.
func newMemoryCache(t testing.TB) (c *memoryCache, follow func()) {
	t.Helper()
	c = &memoryCache{sources: map[string]objectSource{}, informers: map[string]toolscache.SharedIndexInformer{}}
	for _, k := range kinds.Table(true) {
		name := typeName(k.Object())
		c.sources[name] = objectSource{framework.NewFakeControllerSource()}
		c.informers[name] = toolscache.NewSharedIndexInformer(c.sources[name], k.Object(), 0, toolscache.Indexers{
			toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
		})
		if err := c.informers[name].SetTransform(podcache.Transform); err != nil {
			t.Fatal(err)
		}
	}
	return c, func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var all sync.WaitGroup
		for _, informer := range c.informers {
			all.Go(func() { informer.RunWithContext(ctx) })
		}
		t.Cleanup(func() {
			cancel()
			all.Wait()
			for _, source := range c.sources {
				source.Shutdown()
			}
		})
	}
}

// memoryStream is a stream of desired state whose reads a test can hold back.
type memoryStream struct {
	mu sync.Mutex
	// Guarded by mu.
	held     map[string]map[wire.Key]wire.Message
	sequence uint64
	// begun and ended count the reads of each node.
	begun, ended map[string]int
	// free are the nodes whose reads are not held back; nil: all.
	free map[string]bool
	// changed is closed when free changes.
	changed chan struct{}
	// delay is how long a read takes besides.
	delay time.Duration
	// onPublish is called for each message that is published, with mu held; nil: no call.
	onPublish func(wire.Message)
}

func newMemoryStream() *memoryStream {
	return &memoryStream{
		held: map[string]map[wire.Key]wire.Message{}, begun: map[string]int{}, ended: map[string]int{}, free: map[string]bool{}, changed: make(chan struct{}),
	}
}

// release lets the reads of some nodes proceed; of all, if none is named.
func (s *memoryStream) release(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range nodes {
		s.free[node] = true
	}
	if len(nodes) == 0 {
		s.free = nil
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *memoryStream) Publish(_ context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[m.Node][m.Key].Sequence != expectLast {
		return 0, wire.ErrConflict
	}
	s.store(m)
	if s.onPublish != nil {
		s.onPublish(m)
	}
	return s.sequence, nil
}

// store stores a message. The caller holds mu.
func (s *memoryStream) store(m wire.Message) {
	s.sequence++
	m.Sequence, m.Object = s.sequence, nil
	if s.held[m.Node] == nil {
		s.held[m.Node] = map[wire.Key]wire.Message{}
	}
	s.held[m.Node][m.Key] = m
}

func (s *memoryStream) Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[node]++
	for s.free != nil && !s.free[node] {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if s.delay > 0 {
		s.mu.Unlock()
		<-time.After(s.delay)
		s.mu.Lock()
	}
	s.ended[node]++
	held := maps.Clone(s.held[node])
	if held == nil {
		held = map[wire.Key]wire.Message{}
	}
	return held, nil
}

func (s *memoryStream) Newer(context.Context, string, uint64) (bool, error) { return false, nil }

func (s *memoryStream) Purge(_ context.Context, node string, key wire.Key, upTo uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[node][key].Sequence <= upTo {
		delete(s.held[node], key)
	}
	return nil
}

func (s *memoryStream) message(node string, key wire.Key) wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[node][key]
}

func (s *memoryStream) countBegun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.begun)
}

func (s *memoryStream) countEnded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended)
}

func (s *memoryStream) hasBegun(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun[node] > 0
}

// heir is a replica that takes over nodes from a dead one.
type heir struct {
	testing.TB
	objects *memoryCache
	stream  *memoryStream
	owner   *fakeOwnership
	engine  *desired.Engine
	nodes   []string
}

// startHeir starts a replica that owns none of a number of nodes yet. prepare may change what the stream holds before.
func startHeir(t testing.TB, count int, prepare func(*memoryStream)) *heir {
	t.Helper()
	return startHeirWith(t, desired.Config{NoServices: true}, count, prepare)
}

// startHeirWith is startHeir with a configuration.
func startHeirWith(t testing.TB, cfg desired.Config, count int, prepare func(*memoryStream)) *heir {
	t.Helper()
	objects, follow := newMemoryCache(t)
	h := &heir{TB: t, objects: objects, stream: newMemoryStream(), owner: &fakeOwnership{notOwned: map[string]bool{}}}
	for i := range count {
		name := fmt.Sprintf("gw-%04d", i)
		h.nodes = append(h.nodes, name)
		h.owner.notOwned[name] = true
		h.source(&corev1.Node{}).Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{names.LabelEdge: ""}}})
	}
	if prepare != nil {
		prepare(h.stream)
	}
	follow()
	log := zaptest.NewLogger(t, zaptest.WrapOptions(zap.IncreaseLevel(zap.WarnLevel)))
	engine, err := desired.New(cfg, objects, h.stream, h.owner, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- engine.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := kit.Receive(t, "the engine ends", ended); err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	h.engine = engine
	kit.Receive(t, "the engine is ready", engine.Ready())
	return h
}

func (h *heir) source(o client.Object) objectSource { return h.objects.sources[typeName(o)] }

// takeOver makes the heir the owner of all nodes.
func (h *heir) takeOver() {
	h.owner.changeAndNotify(func() {
		h.owner.notOwned = nil
		h.owner.termBreaks++
	})
}

func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u"}, Spec: corev1.PodSpec{NodeName: node}}
}

func podKeyOf(name string) wire.Key {
	return wire.Key{Resource: "pods", Namespace: "default", Name: name}
}

// eventuallyPublished waits until the stream holds a pod for a node.
func (h *heir) eventuallyPublished(node, pod string) {
	h.Helper()
	kit.Eventually(h, pod+" is published for "+node, func() bool { return h.stream.message(node, podKeyOf(pod)).Op == wire.Apply })
}
