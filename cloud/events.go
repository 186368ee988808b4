package cloud

import (
	"context"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// alarmQueue holds alarms until they are written; more are only logged by whoever raises them.
	alarmQueue = 64
	// alarmTimeout bounds the write of one.
	alarmTimeout = 10 * time.Second
)

// alarms writes what an operator should hear of a node as Warning events on its Node, or of another object without a namespace.
type alarms struct {
	kube  kubernetes.Interface
	self  string
	queue chan alarm
	log   *zap.Logger
}

// alarmRules are the rights that alarms needs.
func alarmRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}}}
}

type alarm struct {
	about           corev1.ObjectReference
	reason, message string
}

func newAlarms(self string, kube kubernetes.Interface, log *zap.Logger) *alarms {
	return &alarms{kube: kube, self: self, queue: make(chan alarm, alarmQueue), log: log}
}

// warn raises an alarm about a node. It does not block.
func (a *alarms) warn(node, reason, message string) {
	// As with the kubelet's own events: `kubectl describe node` finds those whose UID is the node's name.
	a.raise(corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node), APIVersion: "v1"}, reason, message)
}

// raise raises an alarm. It does not block.
func (a *alarms) raise(about corev1.ObjectReference, reason, message string) {
	select {
	case a.queue <- alarm{about, reason, message}:
	default:
	}
}

// Start writes until ctx ends and then returns nil. What cannot be written is dropped: it was logged, and is raised again.
func (a *alarms) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case raised := <-a.queue:
			if err := a.write(ctx, raised); err != nil && ctx.Err() == nil {
				a.log.Warn("event not written", zap.String("kind", raised.about.Kind), zap.String("name", raised.about.Name), zap.String("reason", raised.reason), zap.Error(err))
			}
		}
	}
}

func (a *alarms) write(ctx context.Context, raised alarm) error {
	ctx, cancel := context.WithTimeout(ctx, alarmTimeout)
	defer cancel()
	now := metav1.Now()
	_, err := a.kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: raised.about.Name + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: raised.about, Reason: raised.reason, Message: raised.message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "frond-cloudcore", Host: a.self}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: "frond.io/cloudcore", ReportingInstance: a.self,
	}, metav1.CreateOptions{})
	return err
}
