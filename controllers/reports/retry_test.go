package reports_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/reports"
)

// If it is not known whether a report is the latest, it is neither written nor dropped.
func TestApplier_RetriesWhenLatestUnknown(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	m := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "first"))
	w.mu.Lock()
	w.latestErr = errors.New("the server that answered lags behind")
	w.mu.Unlock()
	if err := w.applier.Handle(t.Context(), m); err == nil || errors.Is(err, wire.ErrPermanent) || errors.Is(err, wire.ErrRefused) {
		t.Errorf("error %v, want one that is tried again for ever", err)
	}
	if got := w.getPod("one").Status.Message; got != "" {
		t.Errorf("written in doubt: %q", got)
	}
	if n := w.counterValue("dropped_total", "pods", "replaced"); n != 0 {
		t.Errorf("%d reports dropped in doubt", n)
	}
	w.mu.Lock()
	w.latestErr = nil
	w.mu.Unlock()
	w.handleReport(m)
	if got := w.getPod("one").Status.Message; got != "first" {
		t.Errorf("status %q after the doubt", got)
	}
}

// A refusal by Kubernetes is distinguished from its unavailability: a refused report is retried for some minutes only.
func TestApplier_MarksRefusedReports(t *testing.T) {
	w := newApplierEnv(t)
	const node = "not/a/node" // no role names the user that the request is then made as
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: w.ns}, Source: corev1.EventSource{Host: node}}
	m := w.reportOf(node, wire.Apply, "events", event)
	if err := w.applier.Handle(t.Context(), m); !errors.Is(err, wire.ErrRefused) || errors.Is(err, wire.ErrPermanent) {
		t.Errorf("error %v, want refused", err)
	}
}

// notFoundTransport simulates an apiserver that has just started: it answers deletions of pods with "not found".
type notFoundTransport struct {
	next http.RoundTripper
	left *atomic.Int64
}

func (u notFoundTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodDelete || u.left.Add(-1) < 0 {
		return u.next.RoundTrip(r)
	}
	said := apierrors.NewNotFound(corev1.Resource("pods"), "one").Status()
	body, err := json.Marshal(said)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: int(said.Code), Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// The end of a pod is not dropped because an apiserver that has just started does not find the pod: otherwise it would
// stay Terminating permanently.
func TestApplier_RetriesPodEndNotFound(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	if err := w.client.CoreV1().Pods(w.ns).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	left := &atomic.Int64{}
	config := rest.CopyConfig(w.user)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return notFoundTransport{next, left} })
	applier := w.newApplier(reports.Config{}, config, func(context.Context, wire.Message) (bool, error) { return true, nil })
	end := withoutStatus(w.reportOf(node.Name, wire.Delete, "pods", pod))
	left.Store(1000)
	if err := applier.Handle(t.Context(), end); err == nil || errors.Is(err, wire.ErrPermanent) || errors.Is(err, wire.ErrRefused) {
		t.Errorf("error %v while the apiserver does not find the pod, want one that is tried again for ever", err)
	}
	left.Store(1)
	if err := applier.Handle(t.Context(), end); err != nil {
		t.Error(err)
	}
	if _, err := w.client.CoreV1().Pods(w.ns).Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is still there: %v", err)
	}
}
