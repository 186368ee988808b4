package kube

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
)

const (
	// eventQueueSize is the number of events that wait to be written; further ones are only logged by their source.
	eventQueueSize = 64
	// eventTimeout bounds the write of one event.
	eventTimeout = 10 * time.Second
)

// EventRecorder writes warnings for operators as Warning events, in the namespace of the object that they are about; without one, in default.
type EventRecorder struct {
	kube  kubernetes.Interface
	self  string
	queue chan pendingEvent
	log   *zap.Logger
}

// eventRules returns the RBAC rules that EventRecorder needs.
func eventRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}}}
}

type pendingEvent struct {
	involvedObject  corev1.ObjectReference
	reason, message string
}

// NewEventRecorder creates the recorder of a replica; self is its ID.
func NewEventRecorder(self string, kube kubernetes.Interface, log *zap.Logger) *EventRecorder {
	return &EventRecorder{kube: kube, self: self, queue: make(chan pendingEvent, eventQueueSize), log: log}
}

// WarnNode enqueues a warning about a node. It does not block.
func (a *EventRecorder) WarnNode(node, reason, message string) {
	// This is the form of the kubelet's own events: `kubectl describe node` finds those whose UID is the node's name.
	a.RecordEvent(corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node), APIVersion: "v1"}, reason, message)
}

// RecordEvent enqueues a warning. It does not block.
func (a *EventRecorder) RecordEvent(about corev1.ObjectReference, reason, message string) {
	select {
	case a.queue <- pendingEvent{about, reason, message}:
	default:
	}
}

// Start writes until ctx ends and then returns nil. An event that cannot be written is dropped: it was logged, and is raised again.
func (a *EventRecorder) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case raised := <-a.queue:
			if err := a.writeEvent(ctx, raised); err != nil && ctx.Err() == nil {
				a.log.Warn("event not written", zap.String("kind", raised.involvedObject.Kind), zap.String("name", raised.involvedObject.Name), zap.String("reason", raised.reason), zap.Error(err))
			}
		}
	}
}

func (a *EventRecorder) writeEvent(ctx context.Context, raised pendingEvent) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	now, namespace := metav1.Now(), cmp.Or(raised.involvedObject.Namespace, metav1.NamespaceDefault)
	_, err := a.kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: raised.involvedObject.Name + ".", Namespace: namespace},
		InvolvedObject: raised.involvedObject, Reason: raised.reason, Message: raised.message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: names.ManagerCloudcore, Host: a.self}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: names.ControllerCloudcore, ReportingInstance: a.self,
	}, metav1.CreateOptions{})
	return err
}
