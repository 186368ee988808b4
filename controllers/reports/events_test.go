package reports_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/kubeevent"
	"github.com/frond-edge/frond/api/wire"
)

// An event written through events.k8s.io/v1 arrives as v1, and from nodes of earlier versions as it was written: in
// Kubernetes both are one event.
func TestApplier_ConvertsEventsV1(t *testing.T) {
	w := newApplierEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	event := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: w.ns},
		EventTime:  metav1.NewMicroTime(time.Unix(1700000000, 0)), Type: corev1.EventTypeNormal, Note: "note",
		ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-a", Action: "StartKubeProxy", Reason: "Starting",
		Regarding: corev1.ObjectReference{Kind: "Node", Name: node.Name},
	}
	grouped := func() wire.Message {
		m := w.reportOf(node.Name, wire.Apply, "events", event)
		m.Key.Group = "events.k8s.io"
		return m
	}
	w.handleReport(grouped())
	event.Series = &eventsv1.EventSeries{Count: 4, LastObservedTime: metav1.NewMicroTime(time.Unix(1700000100, 0))}
	repeated := kubeevent.ToCore(event)
	repeated.APIVersion, repeated.Kind = "v1", "Event"
	w.handleReport(w.reportOf(node.Name, wire.Apply, "events", repeated))
	w.wantDropped(grouped(), "unchanged")
	got, err := w.client.EventsV1().Events(metav1.NamespaceDefault).Get(t.Context(), w.ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Series == nil || got.Series.Count != 4 || got.Note != "note" || got.Regarding.Name != node.Name || got.ReportingInstance != "kube-proxy-a" {
		t.Errorf("event: %+v", got)
	}
	event.Regarding.Name = other.Name
	w.wantDropped(grouped(), "foreign")
	event.APIVersion = "events.k8s.io/v1beta1"
	if err := w.applier.Handle(t.Context(), grouped()); !errors.Is(err, wire.ErrPermanent) {
		t.Errorf("an unknown version: %v", err)
	}
}
