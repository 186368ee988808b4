package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/test/kit"
)

// An Event is in the namespace of what it is about; one about an object without a namespace is in default.
func TestEventRecorder_WritesToTheObjectsNamespace(t *testing.T) {
	cluster := sharedCluster.Cluster(t)
	client, namespace := cluster.Client(t), cluster.Namespace(t)
	recorder := NewEventRecorder("test", client, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- recorder.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	node := namespace + "-node" // no other test has it
	recorder.RecordEvent(corev1.ObjectReference{APIVersion: "rules.kubeedge.io/v1", Kind: "Rule", Namespace: namespace, Name: "alarms"}, "EndpointMissing", "text")
	recorder.WarnNode(node, "Lost", "text")
	for namespace, name := range map[string]string{namespace: "alarms", metav1.NamespaceDefault: node} {
		kit.Succeeds(t, time.Minute, func() error {
			list, err := client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
			if err != nil || len(list.Items) != 1 {
				return errors.Join(err, fmt.Errorf("events about %s in %s: %v", name, namespace, list))
			}
			return nil
		})
	}
}
