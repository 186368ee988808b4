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
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// stopping is a Publisher whose process is stopped right before it sends the next message of a key.
type stopping struct {
	*counted
	key wire.Key
	// stopped receives a message when the process is stopped; it continues when resume is closed. sent receives the result.
	stopped, resume chan struct{}
	sent            chan error
}

func newStopping(w *engineEnv, k wire.Key) *stopping {
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

func (s *stopping) awaitStop(t *testing.T) {
	t.Helper()
	select {
	case <-s.stopped:
	case <-time.After(time.Minute):
		t.Fatal("nothing is published")
	}
}

// deadlineIgnoringPublisher sends a message in spite of its age: the process is stopped after the last check of the clock.
type deadlineIgnoringPublisher struct{ *stopping }

func (u deadlineIgnoringPublisher) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	return u.stopping.Publish(context.WithoutCancel(ctx), m, expectLast)
}

// setupStoppedOwner creates a node with a pod, whose old owner is stopped right before it publishes the pod's ConfigMap
// for the first time, and a new owner that has taken over.
func setupStoppedOwner(t *testing.T, age time.Duration, wrap func(*stopping) desired.Publisher) (w *engineEnv, node string, old *stopping, next *desired.Engine) {
	t.Helper()
	w = newEngineEnv(t)
	w.createAccount("default")
	node = w.createNode("a")
	w.createPod("one", node, mountConfigMap("cm"))
	old = newStopping(w, coreKey("configmaps", w.ns, "cm"))
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	cfg := desired.Config{NoServices: true, TombstoneAge: age}
	w.startEngineWith(wrap(old), cfg, first, "desired-old")
	next = w.startEngine(cfg, second, "desired-next")
	w.createConfigMap("cm", "first")
	old.awaitStop(t)
	second.setOwned(node, true) // and the first one, stopped, knows nothing of it
	return w, node, old, next
}

func TestEngine_StoppedWriterCannotRestoreDeleted(t *testing.T) {
	w, node, old, next := setupStoppedOwner(t, time.Hour, func(s *stopping) desired.Publisher { return deadlineIgnoringPublisher{s} })
	w.eventuallyMessage(node, old.key, "published by the next owner", isApplied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tomb := w.eventuallyMessage(node, old.key, "tombstone", isDeleted)
	next.RecordAck(node, tomb.Sequence) // which may not remove it yet
	w.checkUntouched(node, "witness", "pods one", "serviceaccounts default")
	close(old.resume)
	if err := <-old.sent; !errors.Is(err, wire.ErrConflict) {
		t.Errorf("the stopped writer published: %v", err)
	}
	w.checkUntouched(node, "later", "pods one", "serviceaccounts default", "pods witness", "configmaps witness")
}

func TestEngine_StoppedWriterCannotPublishOlder(t *testing.T) {
	w, node, old, _ := setupStoppedOwner(t, time.Hour, func(s *stopping) desired.Publisher { return deadlineIgnoringPublisher{s} })
	w.eventuallyMessage(node, old.key, "published by the next owner", isApplied)
	w.setConfigMap("cm", "second")
	value := func() error {
		var cm corev1.ConfigMap
		w.decodeObject(node, old.key, &cm)
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

// A writer that was stopped for longer than tombstones are kept finds the subject empty; its own deadline stops it.
func TestEngine_DecisionExpiresBeforePurge(t *testing.T) {
	w, node, old, next := setupStoppedOwner(t, 2*time.Second, func(s *stopping) desired.Publisher { return s })
	w.eventuallyMessage(node, old.key, "published by the next owner", isApplied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tomb := w.eventuallyMessage(node, old.key, "tombstone", isDeleted)
	w.eventuallyMessage(node, old.key, "purged", func(m wire.Message) bool {
		next.RecordAck(node, tomb.Sequence) // repeatedly, as heartbeats do
		return m.Sequence == 0
	})
	close(old.resume)
	if err := <-old.sent; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stopped writer published: %v", err)
	}
	w.checkUntouched(node, "witness", "pods one", "serviceaccounts default")
}

func TestEngine_PublishesNothingWithoutLease(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	owner := &fakeOwnership{}
	w.startEngine(desired.Config{NoServices: true}, owner, "desired")
	w.createPod("one", node)
	w.eventuallyHasObjects(node, "pods one", "serviceaccounts default")
	owner.changeAndNotify(func() { owner.leaseExpired = true })
	w.createPod("two", node)
	kubetest.Eventually(t, time.Minute, func() error {
		owner.mu.Lock()
		defer owner.mu.Unlock()
		if owner.refusals < 3 {
			return fmt.Errorf("asked %d times", owner.refusals)
		}
		return nil
	})
	if n := w.publishCount(node, coreKey("pods", w.ns, "two")); n != 0 {
		t.Errorf("published %d messages though nobody hears this replica", n)
	}
	owner.changeAndNotify(func() { owner.leaseExpired = false })
	w.eventuallyHasObjects(node, "pods one", "pods two", "serviceaccounts default")
}

// Writes by others are detected, in a new term at once and otherwise by the audit: here the last message of an owner
// with outdated knowledge.
func TestEngine_DetectsForeignMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   desired.Config
		found func(owner *fakeOwnership)
	}{
		"in a new term": {desired.Config{}, func(owner *fakeOwnership) { owner.changeAndNotify(func() { owner.termBreaks++ }) }},
		"by comparing":  {desired.Config{CompareEvery: 200 * time.Millisecond}, func(*fakeOwnership) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEngineEnv(t)
			w.createAccount("default")
			node := w.createNode("a")
			w.createConfigMap("cm", "new")
			owner := &fakeOwnership{}
			w.startEngine(tt.cfg, owner, "desired")
			w.createPod("one", node, mountConfigMap("cm"))
			k := coreKey("configmaps", w.ns, "cm")
			w.eventuallyHasObjects(node, "configmaps cm", "pods one", "serviceaccounts default")
			good := w.heldMessages(node)[k]
			bad := good
			bad.Object, bad.Digest, bad.Version, bad.Time = []byte(`{"metadata":{"name":"cm"},"data":{"value":"old"}}`), "old", "1", time.Now()
			if _, err := w.publisher.Publisher.Publish(t.Context(), bad, good.Sequence); err != nil {
				t.Fatal(err)
			}
			tt.found(owner)
			w.eventuallyMessage(node, k, "as Kubernetes has it", func(m wire.Message) bool { return m.Digest == good.Digest })
		})
	}
}
