package cloud

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/zap/zaptest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/kubetest"
)

// TestNodesWatchByQuestions: what a program at a node watches through the cloud is what the apiserver tells it and nobody else, from the version
// it names; a quiet watch makes progress; and a right that is taken away ends it with the next question.
func TestNodesWatchByQuestions(t *testing.T) {
	c := newCountry(t)
	calls, err := newKubeCalls(c.cluster.Config(), prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	c.pod("elects", c.node("a"), "elects")
	token, err := c.kube.CoreV1().ServiceAccounts(c.ns).CreateToken(t.Context(), "elects", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leases := c.kube.CoordinationV1().Leases(c.ns)
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(change func(*wire.KubeRequest)) (code int, events []metav1.WatchEvent) {
		t.Helper()
		req := wire.KubeRequest{
			Method: http.MethodGet, Path: "/apis/coordination.k8s.io/v1/namespaces/" + c.ns + "/leases", Query: "resourceVersion=" + list.ResourceVersion,
			Token: token.Status.Token, Wait: (10 * time.Second).Milliseconds(),
		}
		change(&req)
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := calls.Watch(t.Context(), "a", data)
		if err != nil {
			t.Fatal(err)
		}
		got := reply.(wire.KubeReply)
		if got.Code == http.StatusOK {
			for from := json.NewDecoder(bytes.NewReader(got.Body)); from.More(); {
				var e metav1.WatchEvent
				if err := from.Decode(&e); err != nil {
					t.Fatalf("%v in %s", err, got.Body)
				}
				events = append(events, e)
			}
		}
		return got.Code, events
	}
	same := func(*wire.KubeRequest) {}
	if code, _ := ask(same); code != http.StatusForbidden {
		t.Errorf("without a role: code %d", code)
	}
	for what, change := range map[string]func(*wire.KubeRequest){
		"as the node": func(r *wire.KubeRequest) { r.Token = "" }, "by a write": func(r *wire.KubeRequest) { r.Method = http.MethodDelete },
		"of a stream": func(r *wire.KubeRequest) { r.Path = "/api/v1/namespaces/x/pods/y/log" },
	} {
		if code, _ := ask(change); code != http.StatusBadRequest {
			t.Errorf("%s: code %d", what, code)
		}
	}
	if code, _ := ask(func(r *wire.KubeRequest) { r.Token = "forged" }); code != http.StatusUnauthorized {
		t.Errorf("a forged token: code %d", code)
	}
	c.grant("elects", "elects", "coordination.k8s.io", "leases")
	kubetest.Eventually(t, settles, func() error {
		if code, _ := ask(func(r *wire.KubeRequest) { r.Wait = 1 }); code != http.StatusOK {
			return fmt.Errorf("code %d", code)
		}
		return nil
	})
	for range 2 {
		_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "leader-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	code, events := ask(same)
	if code != http.StatusOK || len(events) == 0 || events[0].Type != "ADDED" {
		t.Fatalf("code %d, %+v", code, events)
	}
	var last metav1.PartialObjectMetadata
	if err := json.Unmarshal(events[len(events)-1].Object.Raw, &last); err != nil {
		t.Fatal(err)
	}
	all, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after := func(r *wire.KubeRequest) { r.Query = "resourceVersion=" + all.ResourceVersion }
	for begun := time.Now(); ; { // what is quiet tells how far it is
		if _, events = ask(after); len(events) > 0 {
			if events[0].Type != "BOOKMARK" {
				t.Errorf("%+v where nothing has changed", events)
			}
			break
		}
		if time.Since(begun) > settles {
			t.Fatal("a quiet watch makes no progress")
		}
	}
	c.revoke("elects")
	kubetest.Eventually(t, settles, func() error {
		if code, _ := ask(func(r *wire.KubeRequest) { r.Wait = 1 }); code != http.StatusForbidden {
			return fmt.Errorf("code %d", code)
		}
		return nil
	})
}
