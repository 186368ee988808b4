package reports

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/kubeevent"
	"github.com/frond-edge/frond/api/wire"
)

// eventReports applies the reports of Events.
type eventReports struct{ *target }

// applyEvent creates an event, or raises the count of an existing one. An event belongs to a node if its source is the
// node and its pod, as far as the cache knows it, runs there.
func (a eventReports) applyEvent(ctx context.Context, m wire.Message) error {
	event, err := decodeEvent(m)
	if err != nil {
		return err
	}
	if a.protected.Covers(m.Key) {
		return a.dropReport(m, dropProtected)
	}
	if a.foreignEvent(ctx, m.Node, event) {
		return a.dropReport(m, dropForeign)
	}
	fresh := event.DeepCopy()
	fresh.UID, fresh.ResourceVersion, fresh.ManagedFields, fresh.CreationTimestamp = "", "", nil, metav1.Time{}
	_, err = a.node.CoreV1().Events(event.Namespace).CreateWithEventNamespaceWithContext(ctx, fresh)
	switch {
	case err == nil:
		return a.recordApplied(m, "create")
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err):
		return a.dropReport(m, dropTerminating)
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	return retryStale(func(bool) error { return a.raiseEventCount(ctx, m, event) })
}

// decodeEvent decodes an event. Nodes send v1; those of earlier versions send events that were written through
// events.k8s.io/v1 unchanged.
func decodeEvent(m wire.Message) (*corev1.Event, error) {
	if m.Key.Group == eventsv1.GroupName {
		event := &eventsv1.Event{}
		if err := decodeObject(m, event); err != nil {
			return nil, err
		}
		if event.APIVersion != eventsv1.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("%w: event of version %q", wire.ErrPermanent, event.APIVersion)
		}
		return kubeevent.ToCore(event), nil
	}
	event := &corev1.Event{}
	if err := decodeObject(m, event); err != nil {
		return nil, err
	}
	if event.APIVersion != "" && event.APIVersion != "v1" {
		return nil, fmt.Errorf("%w: event of version %q", wire.ErrPermanent, event.APIVersion)
	}
	return event, nil
}

func (a eventReports) foreignEvent(ctx context.Context, node string, event *corev1.Event) bool {
	if event.Source.Host != "" && event.Source.Host != node {
		return true
	}
	about := event.InvolvedObject
	switch about.Kind {
	case "Node":
		return about.Name != node
	case "Pod":
		pod := &corev1.Pod{}
		err := a.cached.Get(ctx, client.ObjectKey{Namespace: about.Namespace, Name: about.Name}, pod)
		return err == nil && pod.Spec.NodeName != "" && pod.Spec.NodeName != node
	}
	return false
}

// raiseEventCount raises the count of an event that exists.
func (a eventReports) raiseEventCount(ctx context.Context, m wire.Message, event *corev1.Event) error {
	present, err := a.own.CoreV1().Events(event.Namespace).Get(ctx, event.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.dropReport(m, dropGone) // it has just expired; a repetition of so old an event has no value
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if present.Count >= event.Count && seriesCount(present.Series) >= seriesCount(event.Series) {
		return a.dropReport(m, dropUnchanged)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": present.ResourceVersion, "uid": present.UID},
		"count":    event.Count, "lastTimestamp": event.LastTimestamp, "message": event.Message, "series": event.Series,
	})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = a.node.CoreV1().Events(event.Namespace).Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return a.recordApplied(m, "repeat")
}

func seriesCount(series *corev1.EventSeries) int32 {
	if series == nil {
		return 0
	}
	return series.Count
}
