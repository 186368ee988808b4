package taskreports_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/jobs/taskreports"
	"github.com/frond-edge/frond/test/kit"
)

// memory has tasks in memory, and counts the writes.
type memory struct {
	tasks  map[string]*jobs.NodeTask
	writes int
}

func (m *memory) Get(name string) (*jobs.NodeTask, bool) {
	task, exists := m.tasks[name]
	return task, exists
}

func (m *memory) Read(_ context.Context, name string) (*jobs.NodeTask, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: jobs.NodeTasksResource}, name)
}

func (m *memory) SetStatus(_ context.Context, task *jobs.NodeTask, status jobs.NodeTaskStatus) error {
	m.writes++
	next := task.DeepCopy()
	next.Status = status
	m.tasks[task.Name] = next
	return nil
}

func newMemory(tasks int) *memory {
	m := &memory{tasks: map[string]*jobs.NodeTask{}}
	for i := range tasks {
		name := fmt.Sprint("t", i)
		m.tasks[name] = &jobs.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: jobs.NodeTaskSpec{NodeName: "edge-1"}}
	}
	return m
}

func newApplier(t *testing.T, tasks taskreports.Tasks) *taskreports.Applier {
	t.Helper()
	return taskreports.New(tasks, func(context.Context, wire.Message) (bool, error) { return true, nil }, prometheus.NewRegistry(), zaptest.NewLogger(t))
}

func report(task string, phase operations.NodePhase, reason string) wire.Message {
	return wire.Message{
		Node: "edge-1", Op: wire.Apply, UID: task, Key: wire.Key{Group: jobs.Group, Resource: jobs.NodeTasksResource, Name: task},
		Object: fmt.Appendf(nil, `{"metadata":{"name":%q},"status":{"phase":%q,"reason":%q}}`, task, phase, reason),
	}
}

// Reports above the limit of writes do not hold a worker: progress is dropped, what changes the phase is handed back for later.
func TestApplier_DoesNotBlock(t *testing.T) {
	const many = 1000 // a limiter that waits lets 50 of them through each second
	m := newMemory(many)
	a := newApplier(t, m)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // whoever waits fails at once, with this error
	later := map[string]bool{}
	for name := range m.tasks {
		switch err := a.Handle(ended, report(name, operations.NodeSuccessful, "")); {
		case errors.Is(err, context.Canceled), errors.Is(err, wire.ErrPermanent), errors.Is(err, wire.ErrRefused):
			t.Fatalf("%s: %v, want an error that is retried without limit", name, err)
		case err != nil:
			later[name] = true
		}
	}
	if len(later) == 0 || len(later)+m.writes != many {
		t.Fatalf("%d are handed back, %d written", len(later), m.writes)
	}
	for name := range later {
		kit.Must(t, m.SetStatus(t.Context(), m.tasks[name], jobs.NodeTaskStatus{Phase: operations.NodeInProgress}))
		if err := a.Handle(ended, report(name, operations.NodeInProgress, "1 of 2 images")); err != nil {
			t.Fatalf("progress: %v", err)
		}
	}
}

// A status that a task has already is not written again.
func TestApplier_UnchangedStatus(t *testing.T) {
	m := newMemory(1)
	a := newApplier(t, m)
	for range 3 {
		kit.Must(t, a.Handle(t.Context(), report("t0", operations.NodeInProgress, "0 of 2 images")))
	}
	if m.writes != 1 || m.tasks["t0"].Status.Reported.IsZero() {
		t.Errorf("%d writes, status %+v", m.writes, m.tasks["t0"].Status)
	}
	kit.Must(t, a.Handle(t.Context(), report("t0", operations.NodeInProgress, "1 of 2 images")))
	if m.writes != 2 {
		t.Errorf("%d writes", m.writes)
	}
}
