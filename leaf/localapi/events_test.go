package localapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/test/kit/kubetest"
)

// newEvent returns an event as the newer recorder creates it, for example kube-proxy's.
func newEvent(namespace, name string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		EventTime:  metav1.NewMicroTime(time.Unix(1700000000, 5000)), Type: corev1.EventTypeNormal, Note: "note",
		ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-edge-1", Action: "StartKubeProxy", Reason: "Starting",
		Regarding: corev1.ObjectReference{Kind: "Node", Name: gatewayNode, UID: gatewayNode},
	}
}

func TestEvents_AreOneObjectInBothGroups(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, false)
			core, grouped := g.newClient(protobuf).CoreV1().Events("default"), g.newClient(protobuf).EventsV1().Events("default")
			before, err := core.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := core.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Stop()
			made, err := grouped.Create(t.Context(), newEvent("default", "one"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case told := <-watch.ResultChan():
				if e, ok := told.Object.(*corev1.Event); !ok || e.Message != "note" || e.InvolvedObject.Name != gatewayNode || e.UID != made.UID {
					t.Errorf("a watch of v1 shows %+v of %+v", e, made)
				}
			case <-time.After(10 * time.Second):
				t.Error("a watch of v1 shows nothing of an event that was made in events.k8s.io/v1")
			}
			if _, err := core.CreateWithEventNamespaceWithContext(t.Context(), &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"},
			}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("another event of that name in v1: %v", err)
			}
			series := `{"series":{"count":3,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`
			if _, err := grouped.Patch(t.Context(), "one", types.StrategicMergePatchType, []byte(series), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := core.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			last, err := grouped.Get(t.Context(), "one", metav1.GetOptions{})
			if err != nil || last.Series == nil || last.Series.Count != 3 || last.Labels["a"] != "b" || last.Note != "note" {
				t.Errorf("%+v, %v", last, err)
			}
			byReference, err := core.List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + gatewayNode + ",reportingComponent=kube-proxy"})
			if err != nil || len(byReference.Items) != 1 {
				t.Errorf("list of v1: %v, %+v", err, byReference)
			}
			regarding, err := grouped.List(t.Context(), metav1.ListOptions{FieldSelector: "regarding.name=" + gatewayNode + ",reportingController=kube-proxy"})
			if err != nil || len(regarding.Items) != 1 {
				t.Errorf("list of events.k8s.io/v1: %v, %+v", err, regarding)
			}
			g.wantCoreEvents(3)
		})
	}
}

// wantCoreEvents checks that all reports are in the form that every cloudcore accepts.
func (g *gateway) wantCoreEvents(n int) {
	g.t.Helper()
	sent := g.sent.allEvents()
	if len(sent) != n {
		g.t.Errorf("%d events were reported, want %d", len(sent), n)
	}
	for _, m := range sent {
		var e corev1.Event
		if err := json.Unmarshal(m.Object, &e); err != nil || m.Key.Group != "" || e.APIVersion != "v1" || e.Message != "note" || e.InvolvedObject.Name != gatewayNode {
			g.t.Errorf("reported %s of %s: %v", m.Object, m.Key.Human(), err)
		}
	}
}

// Events are written, refused, counted and printed as by a real apiserver, in either group.
func TestEvents_MatchAPIServer(t *testing.T) {
	shared := kubetest.Shared{}
	t.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(t)
	g := newGateway(t, true)
	ns := apiserver.Namespace(t)
	core, grouped := "/api/v1/namespaces/"+ns+"/events", "/apis/events.k8s.io/v1/namespaces/"+ns+"/events"
	body := func(name string, change func(*eventsv1.Event)) string {
		e := newEvent(ns, name)
		e.APIVersion, e.Kind, e.Regarding.Namespace = "events.k8s.io/v1", "Event", ns
		e.CreationTimestamp = metav1.Unix(1700000000, 0)
		if change != nil {
			change(e)
		}
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	post := func(name string, change func(*eventsv1.Event)) apiRequest {
		return apiRequest{method: http.MethodPost, path: grouped, contentType: "application/json", body: body(name, change)}
	}
	old := func(name, more string) apiRequest {
		return apiRequest{method: http.MethodPost, path: core, contentType: "application/json", body: fmt.Sprintf(
			`{"apiVersion":"v1","kind":"Event","metadata":{"name":%q,"creationTimestamp":"2023-11-14T22:13:20Z"},%s}`, name, more)}
	}
	patch := func(path, body string) apiRequest {
		return apiRequest{method: http.MethodPatch, path: path, contentType: string(types.StrategicMergePatchType), body: body}
	}
	get := func(path string) apiRequest { return apiRequest{method: http.MethodGet, path: path} }
	long := strings.Repeat("x", 129)
	for _, q := range []apiRequest{
		post("one", nil),
		get(core + "/one"),
		old("two", `"involvedObject":{"kind":"Pod","name":"web","namespace":"`+ns+`"},"message":"m","reason":"r","type":"Warning","source":{"component":"c","host":"h"},"count":2,"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-02T00:00:00Z"`),
		get(grouped + "/two"),
		patch(grouped+"/one", `{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`),
		patch(grouped+"/one", `{"series":{"count":1,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`),
		patch(grouped+"/one", `{"note":"another"}`),
		patch(grouped+"/one", `{"regarding":{"name":"another"}}`),
		patch(core+"/one", `{"message":"changed"}`),
		patch(core+"/one", `{"reportingInstance":""}`),
		patch(core+"/two", `{"count":3}`),
		post("one", nil),
		post("a", func(e *eventsv1.Event) { e.EventTime = metav1.MicroTime{} }),
		post("b", func(e *eventsv1.Event) { e.Type = "Loud" }),
		post("c", func(e *eventsv1.Event) { e.ReportingController = "" }),
		post("d", func(e *eventsv1.Event) { e.ReportingController = "not a name" }),
		post("e", func(e *eventsv1.Event) { e.ReportingInstance = "" }),
		post("f", func(e *eventsv1.Event) { e.ReportingInstance = long }),
		post("g", func(e *eventsv1.Event) { e.Action = "" }),
		post("h", func(e *eventsv1.Event) { e.Action = long }),
		post("i", func(e *eventsv1.Event) { e.Reason = "" }),
		post("j", func(e *eventsv1.Event) { e.Reason = long }),
		post("k", func(e *eventsv1.Event) { e.Note = strings.Repeat("x", 1025) }),
		post("l", func(e *eventsv1.Event) { e.DeprecatedCount = 1 }),
		post("m", func(e *eventsv1.Event) { e.DeprecatedSource.Host = "h" }),
		post("n", func(e *eventsv1.Event) { e.DeprecatedFirstTimestamp = metav1.Unix(1, 0) }),
		post("o", func(e *eventsv1.Event) { e.DeprecatedLastTimestamp = metav1.Unix(1, 0) }),
		post("p", func(e *eventsv1.Event) { e.Regarding.Namespace = "" }),
		post("q", func(e *eventsv1.Event) { e.Series = &eventsv1.EventSeries{Count: 1} }),
		old("r", `"involvedObject":{"namespace":"elsewhere"}`),
		old("s", `"involvedObject":{}`),
		old("t", `"involvedObject":{"namespace":"`+ns+`"},"eventTime":"2026-01-01T00:00:00.000000Z"`),
		get(core),
		get(grouped),
		{method: http.MethodGet, path: core, accept: asTable},
		{method: http.MethodGet, path: grouped, accept: asTable},
		get(grouped + "?fieldSelector=regarding.kind%3DPod"),
		get(grouped + "?fieldSelector=involvedObject.kind%3DPod"),
		get(core + "?fieldSelector=regarding.kind%3DPod"),
		get(grouped + "?fieldSelector=source%3Dc"),
	} {
		wantCode, want := sendAPIRequest(t, apiserver.Config(), q)
		gotCode, got := sendAPIRequest(t, g.api.ClientConfig(), q)
		if diff := cmp.Diff(dropUID(want), dropUID(got)); diff != "" || gotCode != wantCode {
			t.Errorf("%s %s %.150s: code %d, want %d (-apiserver +gateway):\n%s", q.method, q.path, q.body, gotCode, wantCode, diff)
		}
	}
}

// dropUID removes the values that each side generates itself.
func dropUID(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			dropUID(v[i])
		}
	case map[string]any:
		if m, ok := v["metadata"].(map[string]any); ok {
			delete(m, "uid")
			delete(m, "creationTimestamp")
		}
		for k := range v {
			dropUID(v[k])
		}
	}
	return v
}
