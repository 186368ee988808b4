package kinds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/frond-edge/frond/api/kubeevent"
)

// eventResources returns the two APIs of Kubernetes' one kind of event. They share their objects, as in Kubernetes, and
// these are stored and reported as v1: every cloudcore knows that form, and it loses nothing of the other.
func eventResources() []*Resource {
	return []*Resource{
		{
			GVR: CoreResource("events"), Kind: "Event", ShortNames: []string{"ev"}, Namespaced: true,
			Completeness: Authoritative, Placement: InMemory, Sink: ToEvents,
			LocalWrites: []string{"create", "update", "patch"},
			selectable:  eventFields, columns: eventColumns(), cells: eventCells, Validate: validateCoreEvent,
		},
		{
			GVR: eventsv1.SchemeGroupVersion.WithResource("events"), Kind: "Event", ShortNames: []string{"ev"}, Namespaced: true,
			Completeness: Authoritative, Placement: InMemory, Sink: ToEvents,
			LocalWrites: []string{"create", "update", "patch"},
			selectable:  groupedEventFields, columns: eventColumns(), cells: groupedEventCells, Validate: validateGroupedEvent,
			StoredForm: &storedForm{
				gvr: CoreResource("events"), object: func() runtime.Object { return &corev1.Event{} },
				toServed: func(obj runtime.Object) runtime.Object { return kubeevent.FromCore(obj.(*corev1.Event)) },
				toStored: toCoreEvent,
			},
		},
	}
}

// storedForm is the version in which objects of a resource are stored and reported, if it is not the served one. The kind's
// name is the same in both.
type storedForm struct {
	gvr                schema.GroupVersionResource
	object             func() runtime.Object
	toServed, toStored func(runtime.Object) runtime.Object
}

func toCoreEvent(obj runtime.Object) runtime.Object { return kubeevent.ToCore(obj.(*eventsv1.Event)) }

func groupedEventCells(obj runtime.Object) []any { return eventCells(toCoreEvent(obj)) }

// groupedEventFields returns the field labels of events.k8s.io/v1; metadata is selectable everywhere.
func groupedEventFields(obj runtime.Object) fields.Set {
	core := eventFields(toCoreEvent(obj))
	set := fields.Set{"reason": core["reason"], "type": core["type"], "reportingController": core["reportingComponent"]}
	for _, name := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		set["regarding."+name] = core["involvedObject."+name]
	}
	return set
}

// The limits of an event that has an eventTime, as in Kubernetes.
const (
	maxEventNameLength = 128 // limit of reason, action and reportingInstance
	maxEventNoteLength = 1024
)

// validateCoreEvent returns the faults for which Kubernetes would refuse an event written through v1. Its program gets the
// error at once, also without a link; in the cloud the report would become a dead letter.
func validateCoreEvent(obj, _ runtime.Object) field.ErrorList {
	return validateEvent(obj.(*corev1.Event), "reportingComponent")
}

func validateEvent(e *corev1.Event, controller string) field.ErrorList {
	var errs field.ErrorList
	about := e.InvolvedObject.Namespace
	clusterScoped := about == "" && e.Namespace == metav1.NamespaceDefault
	if e.EventTime.IsZero() {
		if about != e.Namespace && !clusterScoped {
			errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace"))
		}
		return errs
	}
	if about == "" && !clusterScoped && e.Namespace != metav1.NamespaceSystem {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace"))
	}
	for _, f := range []struct {
		name, value string
		most        int
		required    bool
	}{
		{controller, e.ReportingController, 0, true},
		{"reportingInstance", e.ReportingInstance, maxEventNameLength, true},
		{"action", e.Action, maxEventNameLength, true},
		{"reason", e.Reason, maxEventNameLength, true},
		{"message", e.Message, maxEventNoteLength, false},
	} {
		if f.required && f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if f.most > 0 && len(f.value) > f.most {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %d characters", f.most)))
		}
	}
	for _, text := range validation.IsQualifiedName(e.ReportingController) {
		errs = append(errs, field.Invalid(field.NewPath(controller), e.ReportingController, text))
	}
	return errs
}

// validateGroupedEvent applies the stricter rules for writes through events.k8s.io/v1; was is nil for a new event.
func validateGroupedEvent(obj, was runtime.Object) field.ErrorList {
	e := obj.(*eventsv1.Event)
	errs := validateEvent(kubeevent.ToCore(e), "reportingController")
	last, _ := was.(*eventsv1.Event)
	if s := e.Series; s != nil && (last == nil || !equality.Semantic.DeepEqual(s, last.Series)) {
		if s.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series", "count"), s.Count, "should be at least 2"))
		}
		if s.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
		}
	}
	if last != nil {
		return append(errs, validateGroupedEventUpdate(e, last)...)
	}
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), e.Type, "is neither Normal nor Warning"))
	}
	for name, set := range map[string]bool{
		"deprecatedFirstTimestamp": !e.DeprecatedFirstTimestamp.IsZero(), "deprecatedLastTimestamp": !e.DeprecatedLastTimestamp.IsZero(),
		"deprecatedCount": e.DeprecatedCount != 0, "deprecatedSource": e.DeprecatedSource != corev1.EventSource{},
	} {
		if set {
			errs = append(errs, field.Invalid(field.NewPath(name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateGroupedEventUpdate allows an update to change only the metadata and the series.
func validateGroupedEventUpdate(e, last *eventsv1.Event) field.ErrorList {
	unchanged := last.DeepCopy()
	unchanged.TypeMeta, unchanged.ObjectMeta, unchanged.Series = e.TypeMeta, e.ObjectMeta, e.Series
	if equality.Semantic.DeepEqual(unchanged, e) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath(""), "of an event only metadata and series may change")}
}
