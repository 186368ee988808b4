// Package kubeevent converts between the two forms of a Kubernetes Event, v1 and events.k8s.io/v1.
//
// Kubernetes stores one object for both, so an event written through one API is read, patched and counted through the other. Each field of
// one form has a counterpart in the other: a conversion there and back changes nothing. A result shares no mutable data with the argument.
// This package validates nothing.
package kubeevent

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
)

// ToCore returns the event in the form of v1.
func ToCore(event *eventsv1.Event) *corev1.Event {
	event = event.DeepCopy()
	out := &corev1.Event{
		ObjectMeta:          event.ObjectMeta,
		InvolvedObject:      event.Regarding,
		Reason:              event.Reason,
		Message:             event.Note,
		Source:              event.DeprecatedSource,
		FirstTimestamp:      event.DeprecatedFirstTimestamp,
		LastTimestamp:       event.DeprecatedLastTimestamp,
		Count:               event.DeprecatedCount,
		Type:                event.Type,
		EventTime:           event.EventTime,
		Action:              event.Action,
		Related:             event.Related,
		ReportingController: event.ReportingController,
		ReportingInstance:   event.ReportingInstance,
	}
	if s := event.Series; s != nil {
		out.Series = &corev1.EventSeries{Count: s.Count, LastObservedTime: s.LastObservedTime}
	}
	return out
}

// FromCore returns the event in the form of events.k8s.io/v1.
func FromCore(event *corev1.Event) *eventsv1.Event {
	event = event.DeepCopy()
	out := &eventsv1.Event{
		ObjectMeta:               event.ObjectMeta,
		Regarding:                event.InvolvedObject,
		Reason:                   event.Reason,
		Note:                     event.Message,
		DeprecatedSource:         event.Source,
		DeprecatedFirstTimestamp: event.FirstTimestamp,
		DeprecatedLastTimestamp:  event.LastTimestamp,
		DeprecatedCount:          event.Count,
		Type:                     event.Type,
		EventTime:                event.EventTime,
		Action:                   event.Action,
		Related:                  event.Related,
		ReportingController:      event.ReportingController,
		ReportingInstance:        event.ReportingInstance,
	}
	if s := event.Series; s != nil {
		out.Series = &eventsv1.EventSeries{Count: s.Count, LastObservedTime: s.LastObservedTime}
	}
	return out
}
