package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apijobs "github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/jobs"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// registry is an Images whose pulls fail as a test says.
type registry struct {
	mu sync.Mutex
	// failures is how often an image fails; guarded by mu.
	failures map[string]int
	// pulls are all attempts; guarded by mu. secrets are the Secrets that came with them; guarded by mu.
	pulls   []string
	secrets []string
	// held images are pulled until the context ends.
	held map[string]bool
	// onPull is called for each attempt; nil: no call.
	onPull func(image string)
}

func (r *registry) Pull(ctx context.Context, image string, secret *corev1.Secret) error {
	r.mu.Lock()
	r.pulls = append(r.pulls, image)
	if secret != nil {
		r.secrets = append(r.secrets, secret.Name)
	}
	failing := r.failures[image] > 0
	if failing {
		r.failures[image]--
	}
	r.mu.Unlock()
	if r.onPull != nil {
		r.onPull(image)
	}
	if r.held[image] {
		<-ctx.Done()
		return ctx.Err()
	}
	if failing {
		return errors.New("registry says no")
	}
	return nil
}

func (r *registry) Has(_ context.Context, image string) bool {
	return strings.HasPrefix(image, "present@")
}

func (r *registry) attempts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pulls)
}

// sink keeps the last report of each task.
type sink struct {
	mu sync.Mutex
	// last and count are guarded by mu.
	last  map[string]apijobs.NodeTaskStatus
	count map[string]int
}

func (s *sink) Report(_ context.Context, m wire.Message) error {
	var task apijobs.NodeTask
	if err := json.Unmarshal(m.Object, &task); err != nil || task.Name != m.Key.Name || m.UID != "uid-"+task.Name || len(m.Object) > 60<<10 {
		return fmt.Errorf("report %s of %d bytes: %w", m.Key.Human(), len(m.Object), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[task.Name] = task.Status
	s.count[task.Name]++
	return nil
}

func (s *sink) of(task string) apijobs.NodeTaskStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[task]
}

// usage is a Host.
type usage map[operations.CheckItem]float64

func (u usage) Usage(_ context.Context, item operations.CheckItem) (float64, error) {
	return u[item], nil
}

// gateway has a real store.
type gateway struct {
	*testing.T
	store  *store.Store
	images *registry
	host   usage
	link   *streamstest.SwitchableLink
	sink   *sink
	dir    string
	// downs is how often a part of the step found that there is no link.
	downs atomic.Int32
}

// observedLink counts the calls that find no link.
type observedLink struct{ *gateway }

func (l observedLink) State() (up bool, changed <-chan struct{}) {
	up, changed = l.link.State()
	if !up {
		l.downs.Add(1)
	}
	return up, changed
}

// awaitWaiting waits until both the clock of a step and its pull wait for the link.
func (g *gateway) awaitWaiting() {
	g.Helper()
	streamstest.WaitWithin(g.T, time.Minute, "the step waits for the link", func() bool { return g.downs.Load() >= 2 })
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	js, err := jetstream.New(leaftest.StartLeaf(t, leaf.Config{}).Client())
	kit.Must(t, err)
	st, err := store.Open(t.Context(), js, store.Config{}, zaptest.NewLogger(t))
	kit.Must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return &gateway{
		T: t, store: st, host: usage{}, link: streamstest.NewSwitchableLink(), dir: filepath.Join(t.TempDir(), "jobs"),
		images: &registry{failures: map[string]int{}, held: map[string]bool{}}, sink: &sink{last: map[string]apijobs.NodeTaskStatus{}, count: map[string]int{}},
	}
}

func (g *gateway) start() (stop func()) {
	g.Helper()
	executor := jobs.New(jobs.Config{Node: "edge-1", Dir: g.dir, RetryBase: time.Millisecond}, g.store, g.images, g.host, observedLink{g}, g.sink, zaptest.NewLogger(g))
	return streamstest.StartPart(g.T, executor.Start)
}

func keyOf(task string) wire.Key {
	return wire.Key{Group: apijobs.Group, Resource: apijobs.NodeTasksResource, Name: task}
}

func (g *gateway) put(key wire.Key, object any) {
	g.Helper()
	data, err := json.Marshal(object)
	kit.Must(g, err)
	_, err = g.store.Put(g.Context(), key, data, nil)
	kit.Must(g, err)
}

// give stores a task.
func (g *gateway) give(name string, pull apijobs.ImagePrePull) {
	g.Helper()
	if pull.TimeoutSeconds == 0 {
		pull.TimeoutSeconds = 300
	}
	g.put(keyOf(name), apijobs.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       apijobs.NodeTaskSpec{NodeName: "edge-1", Job: apijobs.JobReference{Name: "j"}, ImagePrePull: &pull},
	})
}

func (g *gateway) remove(name string) {
	g.Helper()
	_, err := g.store.Delete(g.Context(), keyOf(name), "", nil)
	kit.Must(g, err)
}

func (g *gateway) await(task string, phase operations.NodePhase) apijobs.NodeTaskStatus {
	g.Helper()
	streamstest.WaitWithin(g.T, time.Minute, task+" is "+string(phase), func() bool { return g.sink.of(task).Phase == phase })
	return g.sink.of(task)
}

func TestExecutor_PullsAllImages(t *testing.T) {
	g := newGateway(t)
	g.images.failures["b"] = 2
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a", "b", "present@sha256:0"}, Retries: 2})
	s := g.await("t", operations.NodeSuccessful)
	if got := g.images.attempts(); !slices.Equal(got, []string{"a", "b", "b", "b"}) {
		t.Errorf("pulls %v", got)
	}
	if len(s.ActionFlow) != 2 || s.ActionFlow[0].Action != "Check" || s.ActionFlow[1].Action != "Pull" || s.ActionFlow[1].Status != metav1.ConditionTrue || len(s.ImageStatus) != 3 {
		t.Errorf("status %+v", s)
	}
}

func TestExecutor_FailsAfterItsRetries(t *testing.T) {
	g := newGateway(t)
	g.images.failures["b"] = 100
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"b", "a"}, Retries: 1})
	s := g.await("t", operations.NodeFailure)
	if got := g.images.attempts(); !slices.Equal(got, []string{"b", "b", "a"}) {
		t.Errorf("pulls %v", got)
	}
	if s.Reason != "b: registry says no" || s.ImageStatus[0].Status != metav1.ConditionFalse || s.ImageStatus[1].Status != metav1.ConditionTrue {
		t.Errorf("status %+v", s)
	}
}

// A report fits into a message whatever a registry says of 64 images.
func TestExecutor_LongReasonsAreCut(t *testing.T) {
	g := newGateway(t)
	g.start()
	var images []string
	for i := range 64 {
		image := fmt.Sprint(i) + strings.Repeat("x", 500)
		images, g.images.failures[image] = append(images, image), 1
	}
	g.give("t", apijobs.ImagePrePull{Images: images})
	if s := g.await("t", operations.NodeFailure); len(s.ImageStatus) != 64 || len(s.Reason) > 200 {
		t.Errorf("status %+v", s)
	}
}

func TestExecutor_Check(t *testing.T) {
	g := newGateway(t)
	g.host[operations.CheckDisk], g.host[operations.CheckMemory] = 86, 81
	g.start()
	g.give("disk", apijobs.ImagePrePull{Images: []string{"a"}})
	if s := g.await("disk", operations.NodeFailure); !strings.Contains(s.Reason, "disk: 86 %") || s.ActionFlow[0].Action != "Check" {
		t.Errorf("status %+v", s)
	}
	g.give("mem", apijobs.ImagePrePull{Images: []string{"a"}, CheckItems: []operations.CheckItem{operations.CheckCPU, operations.CheckMemory}})
	if s := g.await("mem", operations.NodeFailure); !strings.Contains(s.Reason, "mem: 81 %") {
		t.Errorf("status %+v", s)
	}
	if got := g.images.attempts(); len(got) > 0 {
		t.Errorf("pulls %v", got)
	}
	g.give("cpu", apijobs.ImagePrePull{Images: []string{"a"}, CheckItems: []operations.CheckItem{operations.CheckCPU}})
	g.await("cpu", operations.NodeSuccessful)
}

// A restart repeats what was interrupted, and reports what was done without doing it again.
func TestExecutor_Restart(t *testing.T) {
	g := newGateway(t)
	g.images.held["slow"] = true
	stop := g.start()
	g.give("done", apijobs.ImagePrePull{Images: []string{"a"}})
	g.await("done", operations.NodeSuccessful)
	g.give("open", apijobs.ImagePrePull{Images: []string{"slow"}})
	streamstest.WaitWithin(t, time.Minute, "slow is pulled", func() bool { return slices.Contains(g.images.attempts(), "slow") })
	stop()
	if s := g.sink.of("open"); s.Phase != operations.NodeInProgress {
		t.Errorf("an interrupted step reports %+v", s)
	}
	g.images = &registry{failures: map[string]int{"a": 100}}
	g.sink = &sink{last: map[string]apijobs.NodeTaskStatus{}, count: map[string]int{}}
	g.start()
	g.await("open", operations.NodeSuccessful)
	g.await("done", operations.NodeSuccessful)
	if got := g.images.attempts(); !slices.Equal(got, []string{"slow"}) {
		t.Errorf("pulls %v", got)
	}
}

// A damaged file of an outcome is as none: the step is done again.
func TestExecutor_DamagedOutcome(t *testing.T) {
	g := newGateway(t)
	stop := g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}})
	g.await("t", operations.NodeSuccessful)
	stop()
	files, err := filepath.Glob(filepath.Join(g.dir, "*.json"))
	kit.Must(t, err)
	if len(files) != 1 {
		t.Fatalf("files %v", files)
	}
	kit.Must(t, os.WriteFile(files[0], []byte(`{"uid":"uid-t","status":`), 0o600))
	g.start()
	streamstest.WaitWithin(t, time.Minute, "a is pulled again", func() bool { return len(g.images.attempts()) == 2 })
	g.await("t", operations.NodeSuccessful)
	g.remove("t")
	streamstest.WaitWithin(t, time.Minute, "the outcome is forgotten", func() bool {
		left, err := filepath.Glob(filepath.Join(g.dir, "*"))
		return err == nil && len(left) == 0
	})
}

// A task that is taken away stops the step, and the next one begins.
func TestExecutor_TaskTakenAway(t *testing.T) {
	g := newGateway(t)
	g.images.held["slow"] = true
	g.start()
	g.give("first", apijobs.ImagePrePull{Images: []string{"slow"}})
	streamstest.WaitWithin(t, time.Minute, "slow is pulled", func() bool { return len(g.images.attempts()) == 1 })
	g.give("second", apijobs.ImagePrePull{Images: []string{"a"}})
	g.remove("first")
	g.await("second", operations.NodeSuccessful)
	if s := g.sink.of("first"); s.Phase != operations.NodeInProgress {
		t.Errorf("a step without a task reports %+v", s)
	}
}

// Tasks of other gateways, and what is no task, are left alone.
func TestExecutor_ForeignTasks(t *testing.T) {
	g := newGateway(t)
	g.put(keyOf("foreign"), apijobs.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign", UID: "uid-foreign"},
		Spec:       apijobs.NodeTaskSpec{NodeName: "edge-2", ImagePrePull: &apijobs.ImagePrePull{Images: []string{"x"}, TimeoutSeconds: 1}},
	})
	g.put(keyOf("wrong"), map[string]any{"metadata": map[string]any{"name": "wrong"}, "spec": "reboot"})
	g.put(keyOf("newer"), map[string]any{"metadata": map[string]any{"name": "newer", "uid": "uid-newer"}, "spec": map[string]any{"nodeName": "edge-1", "reboot": true}})
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}})
	g.await("t", operations.NodeSuccessful)
	if s := g.await("newer", operations.NodeFailure); !strings.Contains(s.Reason, "does not know") {
		t.Errorf("status %+v", s)
	}
	if got := g.images.attempts(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("pulls %v", got)
	}
}

// The pull Secret may come after the task. Each attempt reads it anew.
func TestExecutor_WaitsForItsSecret(t *testing.T) {
	g := newGateway(t)
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}, Secret: &apijobs.SecretReference{Namespace: "shop", Name: "pull"}})
	g.await("t", operations.NodeInProgress)
	g.put(wire.Key{Resource: "secrets", Namespace: "shop", Name: "pull"}, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pull"}})
	g.await("t", operations.NodeSuccessful)
	if got := g.images.secrets; !slices.Equal(got, []string{"pull"}) {
		t.Errorf("secrets %v", got)
	}
}

// Without a link, attempts do not count and time does not run.
func TestExecutor_WithoutALink(t *testing.T) {
	g := newGateway(t)
	g.images.failures["a"] = 1
	pulled := make(chan struct{}, 10)
	g.images.onPull = func(string) { pulled <- struct{}{} }
	g.link.SetUp(false)
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}, TimeoutSeconds: 300})
	<-pulled
	g.awaitWaiting()
	g.link.SetUp(true)
	g.await("t", operations.NodeSuccessful)
}

// The time limit says that it has passed, and what the step waited for.
func TestExecutor_TimeLimitWithoutItsSecret(t *testing.T) {
	g := newGateway(t)
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}, TimeoutSeconds: 1, Secret: &apijobs.SecretReference{Namespace: "shop", Name: "pull"}})
	s := g.await("t", operations.NodeFailure)
	if r := s.ImageStatus[0].Reason; !strings.Contains(r, "timeoutSeconds") || !strings.Contains(r, "pull secret shop/pull has not arrived") || !strings.Contains(s.Reason, r) {
		t.Errorf("status %+v", s)
	}
}

// The registry's error is not lost when the time limit passes before the next attempt.
func TestExecutor_TimeLimitAfterAnError(t *testing.T) {
	g := newGateway(t)
	g.images.failures["a"] = 1000000
	g.link.SetUp(false) // the time begins after the first error
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"a"}, TimeoutSeconds: 1, Retries: 1000000})
	g.awaitWaiting()
	g.link.SetUp(true)
	s := g.await("t", operations.NodeFailure)
	if r := s.ImageStatus[0].Reason; !strings.Contains(r, "timeoutSeconds") || !strings.Contains(r, "registry says no") {
		t.Errorf("status %+v", s)
	}
}

func TestExecutor_TimeLimit(t *testing.T) {
	g := newGateway(t)
	g.images.held["slow"] = true
	g.start()
	g.give("t", apijobs.ImagePrePull{Images: []string{"slow", "a"}, TimeoutSeconds: 1})
	if s := g.await("t", operations.NodeFailure); !strings.Contains(s.Reason, "timeoutSeconds") || s.ImageStatus[0].Status != metav1.ConditionFalse {
		t.Errorf("status %+v", s)
	}
}

// A step that waits for another one says so before it begins, and says when it begins: cloudcore does not count the time before.
func TestExecutor_QueuedStep(t *testing.T) {
	g := newGateway(t)
	g.images.held["slow"] = true
	g.start()
	g.give("first", apijobs.ImagePrePull{Images: []string{"slow"}})
	g.await("first", operations.NodeInProgress)
	g.give("second", apijobs.ImagePrePull{Images: []string{"slow"}})
	if s := g.await("second", operations.NodePending); !strings.Contains(s.Reason, "another step") {
		t.Errorf("status %+v", s)
	}
	g.remove("first")
	g.await("second", operations.NodeInProgress)
}
