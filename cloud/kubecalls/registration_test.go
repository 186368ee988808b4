package kubecalls

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// TestKubeCalls_RegisterANodeWithItsLabels: a Node that a gateway creates by a request has the labels of a gateway from
// its first version on, and only what Kubernetes lets the node itself create is created.
func TestKubeCalls_RegisterANodeWithItsLabels(t *testing.T) {
	c := newCallFixture(t)
	calls, err := New(c.cluster.Config(), false, c.newGuard("frond-system"), nil, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	register := func(mediaType, as, name string, labels map[string]string) wire.KubeReply {
		t.Helper()
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
		node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		var body bytes.Buffer
		if err := info.Serializer.Encode(node, &body); err != nil {
			t.Fatal(err)
		}
		request, err := json.Marshal(wire.KubeRequest{Method: http.MethodPost, Path: "/api/v1/nodes", ContentType: mediaType, Body: body.Bytes()})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := calls.Handle(t.Context(), as, request)
		if err != nil {
			t.Fatal(err)
		}
		return reply.(wire.KubeReply)
	}
	name := c.ns + "-gw"
	t.Cleanup(func() {
		_ = c.kube.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	})
	seen, err := c.kube.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	for what, reply := range map[string]wire.KubeReply{
		"another's":          register(runtime.ContentTypeJSON, c.ns+"-other", name, nil),
		"a restricted label": register(runtime.ContentTypeJSON, name, name, map[string]string{"node-restriction.kubernetes.io/x": "1"}),
		"the label by hand":  register(runtime.ContentTypeJSON, name, name, map[string]string{names.LabelEdge: ""}),
	} {
		if reply.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s %.300s", what, reply.Code, reply.Error, reply.Body)
		}
	}
	if reply := register(runtime.ContentTypeJSON, name, name, map[string]string{"example.com/site": "7"}); reply.Code != http.StatusCreated {
		t.Fatalf("%d %s %.300s", reply.Code, reply.Error, reply.Body)
	}
	first, ok := (<-seen.ResultChan()).Object.(*corev1.Node)
	if !ok {
		t.Fatal("the watch ended")
	}
	if _, edge := first.Labels[names.LabelEdge]; !edge || first.Labels["example.com/site"] != "7" {
		t.Errorf("first seen with labels %v", first.Labels)
	}
	if reply := register(runtime.ContentTypeJSON, name, name, nil); reply.Code != http.StatusConflict {
		t.Errorf("a second time: %d %s %.300s", reply.Code, reply.Error, reply.Body)
	}
}
