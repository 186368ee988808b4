package desired_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/internal/kubetest"
)

// stopping is a Publisher whose process is stopped right before it sends the next message of a key.
type stopping struct {
	*counted
	key wire.Key
	// stopped gets a message when it is stopped; it goes on when resume is closed. sent gets the result.
	stopped, resume chan struct{}
	sent            chan error
}

func newStopping(w *world, k wire.Key) *stopping {
	return &stopping{counted: w.publisher, key: k, stopped: make(chan struct{}), resume: make(chan struct{}), sent: make(chan error, 1)}
}

func (s *stopping) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	if m.Key != s.key {
		return s.counted.Publish(ctx, m, expectLast)
	}
	select {
	case s.stopped <- struct{}{}:
	case <-s.resume:
		return s.counted.Publish(ctx, m, expectLast)
	}
	<-s.resume
	sequence, err := s.counted.Publish(ctx, m, expectLast)
	s.sent <- err
	return sequence, err
}

func (s *stopping) await(t *testing.T) {
	t.Helper()
	select {
	case <-s.stopped:
	case <-time.After(time.Minute):
		t.Fatal("nothing is published")
	}
}

// unstopped lets a message go in spite of its age: the process is stopped after the last look at the clock.
type unstopped struct{ *stopping }

func (u unstopped) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	return u.stopping.Publish(context.WithoutCancel(ctx), m, expectLast)
}

// fenced is a node with a pod, of which the old owner is stopped right before it publishes the pod's ConfigMap for the first
// time, and a new owner that has taken over.
func fenced(t *testing.T, age time.Duration, wrap func(*stopping) desired.Publisher) (w *world, node string, old *stopping, next *desired.Engine) {
	t.Helper()
	w = newWorld(t)
	w.account("default")
	node = w.node("a")
	w.pod("one", node, mountConfigMap("cm"))
	old = newStopping(w, key("configmaps", w.ns, "cm"))
	first, second := &owners{}, &owners{}
	second.set(node, false)
	cfg := desired.Config{NoServices: true, TombstoneAge: age}
	w.engineOver(wrap(old), cfg, first, "desired-old")
	next = w.engine(cfg, second, "desired-next")
	w.configMap("cm", "first")
	old.await(t)
	second.set(node, true) // and the first one, stopped, knows nothing of it
	return w, node, old, next
}

func TestAStoppedWriterCannotBringBackTheDeleted(t *testing.T) {
	w, node, old, next := fenced(t, time.Hour, func(s *stopping) desired.Publisher { return unstopped{s} })
	w.eventually(node, old.key, "published by the next owner", applied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tomb := w.eventually(node, old.key, "tombstone", deleted)
	next.Acked(node, tomb.Sequence) // which may not remove it yet
	w.untouched(node, "witness", "pods one", "serviceaccounts default")
	close(old.resume)
	if err := <-old.sent; !errors.Is(err, wire.ErrConflict) {
		t.Errorf("the stopped writer published: %v", err)
	}
	w.untouched(node, "later", "pods one", "serviceaccounts default", "pods witness", "configmaps witness")
}

func TestAStoppedWriterCannotPublishAnOlderVersion(t *testing.T) {
	w, node, old, _ := fenced(t, time.Hour, func(s *stopping) desired.Publisher { return unstopped{s} })
	w.eventually(node, old.key, "published by the next owner", applied)
	w.setConfigMap("cm", "second")
	value := func() error {
		var cm corev1.ConfigMap
		w.object(node, old.key, &cm)
		if cm.Data["value"] != "second" {
			return fmt.Errorf("value %q", cm.Data["value"])
		}
		return nil
	}
	kubetest.Eventually(t, time.Minute, value)
	close(old.resume)
	if err := <-old.sent; !errors.Is(err, wire.ErrConflict) {
		t.Errorf("the stopped writer published: %v", err)
	}
	if err := value(); err != nil {
		t.Error(err)
	}
}

// A writer that was stopped for longer than tombstones are kept finds the subject empty; its own clock stops it.
func TestAWriterStoppedForVeryLongDoesNotSend(t *testing.T) {
	w, node, old, next := fenced(t, 2*time.Second, func(s *stopping) desired.Publisher { return s })
	w.eventually(node, old.key, "published by the next owner", applied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tomb := w.eventually(node, old.key, "tombstone", deleted)
	w.eventually(node, old.key, "purged", func(m wire.Message) bool {
		next.Acked(node, tomb.Sequence) // again and again, as heartbeats do
		return m.Sequence == 0
	})
	close(old.resume)
	if err := <-old.sent; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stopped writer published: %v", err)
	}
	w.untouched(node, "witness", "pods one", "serviceaccounts default")
}

func TestNothingIsPublishedWhileUnheard(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	owner := &owners{}
	w.engine(desired.Config{NoServices: true}, owner, "desired")
	w.pod("one", node)
	w.eventuallyLists(node, "pods one", "serviceaccounts default")
	owner.change(func() { owner.away = true })
	w.pod("two", node)
	kubetest.Eventually(t, time.Minute, func() error {
		owner.mu.Lock()
		defer owner.mu.Unlock()
		if owner.refused < 3 {
			return fmt.Errorf("asked %d times", owner.refused)
		}
		return nil
	})
	if n := w.published(node, key("pods", w.ns, "two")); n != 0 {
		t.Errorf("published %d messages though nobody hears this replica", n)
	}
	owner.change(func() { owner.away = false })
	w.eventuallyLists(node, "pods one", "pods two", "serviceaccounts default")
}

// What another hand writes is found, in a new term at once and otherwise by comparing: here the last word of an owner that
// did not know better.
func TestWhatAnotherHandWroteIsFound(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   desired.Config
		found func(owner *owners)
	}{
		"in a new term": {desired.Config{}, func(owner *owners) { owner.change(func() { owner.breaks++ }) }},
		"by comparing":  {desired.Config{CompareEvery: 200 * time.Millisecond}, func(*owners) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.account("default")
			node := w.node("a")
			w.configMap("cm", "new")
			owner := &owners{}
			w.engine(tt.cfg, owner, "desired")
			w.pod("one", node, mountConfigMap("cm"))
			k := key("configmaps", w.ns, "cm")
			w.eventuallyLists(node, "configmaps cm", "pods one", "serviceaccounts default")
			good := w.held(node)[k]
			bad := good
			bad.Object, bad.Digest, bad.Version, bad.Time = []byte(`{"metadata":{"name":"cm"},"data":{"value":"old"}}`), "old", "1", time.Now()
			if _, err := w.publisher.Publisher.Publish(t.Context(), bad, good.Sequence); err != nil {
				t.Fatal(err)
			}
			tt.found(owner)
			w.eventually(node, k, "as Kubernetes has it", func(m wire.Message) bool { return m.Digest == good.Digest })
		})
	}
}
