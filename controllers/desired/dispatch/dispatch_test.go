package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/dispatch"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keyOf(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "n", Name: name}
}

// state is whether a node is loaded.
type state struct{ loaded atomic.Bool }

func (s *state) Loaded() bool { return s.loaded.Load() }

// processed is one item that was processed.
type processed struct {
	node     string
	key      wire.Key
	priority controllers.Priority
}

// recorder is a Processor whose loads a test holds back.
type recorder struct {
	queue  *dispatch.Queue
	states map[string]*state
	// objects are what a load compares.
	objects map[wire.Key]struct{}
	items   chan processed
	spread  chan wire.Key

	mu sync.Mutex
	// Guarded by mu.

	// gates hold back the loads of nodes until they are closed.
	gates map[string]chan struct{}
	// failures are how many loads of a node still fail.
	failures map[string]int
	loads    map[string]int
}

func (r *recorder) ProcessItem(_ context.Context, p controllers.Priority, it dispatch.Item) error {
	r.items <- processed{it.Node.Name(), it.Key, p}
	return nil
}

func (r *recorder) LoadNode(ctx context.Context, n *dispatch.Node) error {
	r.mu.Lock()
	r.loads[n.Name()]++
	gate := r.gates[n.Name()]
	fail := r.failures[n.Name()] > 0
	r.failures[n.Name()]--
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fail {
		return errors.New("no leader")
	}
	r.states[n.Name()].loaded.Store(true)
	r.queue.CompareAll(n, r.objects)
	return nil
}

func (r *recorder) SpreadChange(key wire.Key) { r.spread <- key }

func (r *recorder) countLoads(node string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loads[node]
}

func (r *recorder) hold(node string) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gate := make(chan struct{})
	r.gates[node] = gate
	return sync.OnceFunc(func() { close(gate) })
}

// start runs a queue of some nodes, none of which is loaded, until the test ends.
func start(t *testing.T, count int) (*recorder, []*dispatch.Node) {
	t.Helper()
	r := &recorder{
		queue: dispatch.New(), states: map[string]*state{}, objects: map[wire.Key]struct{}{keyOf("a"): {}, keyOf("b"): {}, keyOf("c"): {}},
		items: make(chan processed, 10000), spread: make(chan wire.Key, 100), gates: map[string]chan struct{}{}, failures: map[string]int{}, loads: map[string]int{},
	}
	var nodes []*dispatch.Node
	for i := range count {
		name := fmt.Sprint("gw-", i)
		r.states[name] = &state{}
		nodes = append(nodes, dispatch.NewNode(name, r.states[name]))
	}
	shut := r.queue.Open(time.Millisecond, 5*time.Millisecond)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.queue.Run(ctx, 4, r)
	}()
	t.Cleanup(func() {
		cancel()
		kit.Receive(t, "the queue ends", ended)
		shut()
	})
	return r, nodes
}

// receive returns the next items of a load: of each, once.
func (r *recorder) receive(t *testing.T, count int) map[wire.Key]controllers.Priority {
	t.Helper()
	got := map[wire.Key]controllers.Priority{}
	for range count {
		p := kit.Receive(t, "an item", r.items)
		if _, twice := got[p.key]; twice {
			t.Errorf("%s is processed twice", p.key.Human())
		}
		got[p.key] = p.priority
	}
	return got
}

func TestQueue_ChangesOverLoads(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *recorder, n *dispatch.Node, release func()){
		"before its load has begun": func(_ *testing.T, r *recorder, n *dispatch.Node, release func()) {
			release()
			r.queue.Change(n, keyOf("b"))
		},
		"during its load": func(t *testing.T, r *recorder, n *dispatch.Node, release func()) {
			t.Helper()
			r.queue.Load(n, controllers.Urgent)
			kit.Eventually(t, "the load has begun", func() bool { return r.countLoads(n.Name()) == 1 })
			r.queue.Change(n, keyOf("b"))
			release()
		},
		"while another replica owned the node": func(_ *testing.T, r *recorder, n *dispatch.Node, release func()) {
			release()
			r.queue.Release(n)
			r.queue.Change(n, keyOf("b"))
			for _, changed := range r.queue.RecentlyChanged() {
				r.queue.Load(changed, controllers.Background)
			}
			r.queue.HastenLoads()
		},
		"of an object that the load does not name": func(_ *testing.T, r *recorder, n *dispatch.Node, release func()) {
			release()
			r.queue.Change(n, keyOf("b"))
			r.queue.Change(n, keyOf("d"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, nodes := start(t, 200)
			r.queue.Follow()
			for _, n := range nodes {
				t.Cleanup(r.hold(n.Name()))
			}
			last := nodes[len(nodes)-1]
			release := r.hold(last.Name())
			defer release()
			for _, n := range nodes {
				r.queue.Load(n, controllers.Background)
			}
			change(t, r, last, release)
			want := len(r.objects)
			if name == "of an object that the load does not name" {
				want++
			}
			got := r.receive(t, want)
			for key, p := range got {
				if urgent := key == keyOf("b") || key == keyOf("d"); (p == controllers.Urgent) != urgent {
					t.Errorf("%s has priority %d", key.Human(), p)
				}
			}
			if loads := r.countLoads(last.Name()); loads != 1 {
				t.Errorf("the node is loaded %d times", loads)
			}
			if r.queue.AwaitsLoad(last) {
				t.Error("it still awaits its load")
			}
			if !r.queue.AwaitsLoad(nodes[0]) {
				t.Error("the first one does not await its load")
			}
		})
	}
}

// At the start every object is an event; none of them makes a load urgent, and each load compares all objects.
func TestQueue_StartIsNoChange(t *testing.T) {
	r, nodes := start(t, 1)
	n := nodes[0]
	release := r.hold(n.Name())
	defer release()
	r.queue.Change(n, keyOf("a"))
	if changed := r.queue.RecentlyChanged(); len(changed) != 0 {
		t.Errorf("%d nodes have changed", len(changed))
	}
	r.queue.Load(n, controllers.Urgent)
	kit.Eventually(t, "the load has begun", func() bool { return r.countLoads(n.Name()) == 1 })
	r.queue.Change(n, keyOf("a"))
	release()
	for key, p := range r.receive(t, len(r.objects)) {
		if p != controllers.Background {
			t.Errorf("%s has priority %d", key.Human(), p)
		}
	}
}

// A load that fails is retried, and what has changed meanwhile comes first in the end.
func TestQueue_FailedLoadIsRetried(t *testing.T) {
	for name, p := range map[string]controllers.Priority{"background": controllers.Background, "urgent": controllers.Urgent} {
		t.Run(name, func(t *testing.T) {
			r, nodes := start(t, 1)
			r.queue.Follow()
			n := nodes[0]
			r.failures[n.Name()] = 3
			release := r.hold(n.Name())
			defer release()
			r.queue.Load(n, p)
			kit.Eventually(t, "the load has begun", func() bool { return r.countLoads(n.Name()) == 1 })
			r.queue.Change(n, keyOf("c"))
			release()
			got := r.receive(t, len(r.objects))
			if got[keyOf("c")] != controllers.Urgent || got[keyOf("a")] != controllers.Background {
				t.Errorf("priorities %v", got)
			}
			if loads := r.countLoads(n.Name()); loads != 4 {
				t.Errorf("%d loads, want 4", loads)
			}
		})
	}
}

// A node that another replica owns by now is not loaded.
func TestQueue_ReleasedNodeIsNotLoaded(t *testing.T) {
	r, nodes := start(t, 2)
	r.queue.Follow()
	blocked := make([]func(), 0, len(nodes))
	for _, n := range nodes {
		blocked = append(blocked, r.hold(n.Name()))
	}
	defer blocked[1]()
	r.queue.Load(nodes[0], controllers.Background)
	kit.Eventually(t, "the first load has begun", func() bool { return r.countLoads("gw-0") == 1 })
	r.queue.Load(nodes[0], controllers.Background) // waits for the first one to end
	r.queue.Release(nodes[0])
	blocked[0]()
	r.receive(t, len(r.objects))
	r.queue.Load(nodes[1], controllers.Background)
	kit.Eventually(t, "the load of another node has begun", func() bool { return r.countLoads("gw-1") == 1 })
	if n := r.countLoads("gw-0"); n != 1 {
		t.Errorf("the released node is loaded %d times", n)
	}
}

// An item that failed waits for another load of its node; delayed requests for loads are carried out.
func TestQueue_RetryAfterLoad(t *testing.T) {
	r, nodes := start(t, 1)
	r.queue.Follow()
	r.queue.Load(nodes[0], controllers.Background)
	r.receive(t, len(r.objects))
	r.queue.Change(nodes[0], keyOf("a"))
	if p := kit.Receive(t, "the change", r.items); p != (processed{"gw-0", keyOf("a"), controllers.Urgent}) {
		t.Errorf("processed %v", p)
	}
	r.queue.RetryAfterLoad(dispatch.Item{Node: nodes[0], Key: keyOf("a")}, controllers.Urgent)
	if got := r.receive(t, len(r.objects)); got[keyOf("a")] != controllers.Urgent || got[keyOf("b")] != controllers.Background {
		t.Errorf("priorities %v", got)
	}
	r.queue.AddAfter(controllers.Background, dispatch.Item{Node: nodes[0]}, time.Millisecond)
	r.receive(t, len(r.objects))
	r.queue.Repair(nodes[0], keyOf("x"))
	if p := kit.Receive(t, "the repair", r.items); p != (processed{"gw-0", keyOf("x"), controllers.Background}) {
		t.Errorf("processed %v", p)
	}
	if n := r.countLoads("gw-0"); n != 3 {
		t.Errorf("%d loads, want 3", n)
	}
}
