// Package nodecondition writes the conditions that edgecore itself sets on the gateway's Node.
//
// It writes like any client of the local API: a condition reaches the store and, by a report, the cloud. It does not decide what a
// condition says.
package nodecondition

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// writeTimeout limits one write.
const writeTimeout = 10 * time.Second

// Writer writes the conditions of one Node.
type Writer struct {
	node   string
	client kubernetes.Interface
}

// NewWriter returns a writer for a node; api is its local API.
func NewWriter(node string, api *rest.Config) (*Writer, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("node conditions: %w", err)
	}
	return &Writer{node: node, client: client}, nil
}

// Write writes Type, Status, Reason and Message of a condition, with the present time.
func (w *Writer) Write(ctx context.Context, c corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	c.LastHeartbeatTime = metav1.Now()
	c.LastTransitionTime = c.LastHeartbeatTime
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Nodes().PatchStatus(ctx, w.node, patch)
	return err
}

// Ensure writes a condition unless the Node, which may have been created anew, has it.
func (w *Writer) Ensure(ctx context.Context, c corev1.NodeCondition) error {
	is, err := w.read(ctx, c.Type)
	if err != nil || is != nil && is.Status == c.Status && is.Reason == c.Reason && is.Message == c.Message {
		return err
	}
	return w.Write(ctx, c)
}

// Replace is Ensure for a Node that has a condition of this type, and does nothing for others.
func (w *Writer) Replace(ctx context.Context, c corev1.NodeCondition) error {
	is, err := w.read(ctx, c.Type)
	if err != nil || is == nil {
		return err
	}
	return w.Ensure(ctx, c)
}

// read returns the condition of a type; nil if the Node has none.
func (w *Writer) read(ctx context.Context, kind corev1.NodeConditionType) (*corev1.NodeCondition, error) {
	object, err := w.client.CoreV1().Nodes().Get(ctx, w.node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for i := range object.Status.Conditions {
		if has := &object.Status.Conditions[i]; has.Type == kind {
			return has, nil
		}
	}
	return nil, nil //nolint:nilnil // none is no error
}
