package reports_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Where nobody can say whether a report is the last, it is neither written nor dropped.
func TestAReportInDoubtIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	pod := w.pod("one", node.Name)
	m := w.message(node.Name, wire.Apply, "pods", status(pod, corev1.PodRunning, "first"))
	w.mu.Lock()
	w.doubt = errors.New("the server that answered lags behind")
	w.mu.Unlock()
	if err := w.applier.Handle(t.Context(), m); err == nil || errors.Is(err, wire.ErrPermanent) || errors.Is(err, wire.ErrRefused) {
		t.Errorf("error %v, want one that is tried again for ever", err)
	}
	if got := w.getPod("one").Status.Message; got != "" {
		t.Errorf("written in doubt: %q", got)
	}
	if n := w.count("dropped_total", "pods", "replaced"); n != 0 {
		t.Errorf("%d reports dropped in doubt", n)
	}
	w.mu.Lock()
	w.doubt = nil
	w.mu.Unlock()
	w.handle(m)
	if got := w.getPod("one").Status.Message; got != "first" {
		t.Errorf("status %q after the doubt", got)
	}
}

// Kubernetes' no is told apart from its absence: the first is tried again for some minutes only.
func TestWhatKubernetesRefusesIsMarked(t *testing.T) {
	w := newWorld(t)
	const node = "not/a/node" // no role knows whom the request is then made as
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: w.ns}, Source: corev1.EventSource{Host: node}}
	m := w.message(node, wire.Apply, "events", event)
	if err := w.applier.Handle(t.Context(), m); !errors.Is(err, wire.ErrRefused) || errors.Is(err, wire.ErrPermanent) {
		t.Errorf("error %v, want refused", err)
	}
}
