package kubecalls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
)

// TestReadEvents_FitsTheLink: an answer contains changes up to the node's limit, one at least; one that is too large
// alone is refused.
func TestReadEvents_FitsTheLink(t *testing.T) {
	change := func(size int) string { return `"` + strings.Repeat("x", size-2) + `"` }
	three := change(5000) + change(5000) + change(5000)
	for name, tt := range map[string]struct {
		watch string
		take  int
		want  int // changes
		large bool
	}{
		"everything":                {three, 0, 3, false},
		"two of three":              {three, 16 << 10, 2, false},
		"one at least":              {three, 2 << 10, 1, false},
		"one larger that is whole":  {change(20000) + three, 2 << 10, 1, false},
		"one that is too large":     {change(30000), 16 << 10, 0, true},
		"what fits before it":       {change(5000) + change(30000), 16 << 10, 1, false},
		"a large one for all":       {change(300000), 0, 1, false},
		"a large one on a fast one": {change(100000), 256 << 10, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			told := 0
			all, err := readEvents(strings.NewReader(tt.watch), tt.take, func() { told++ })
			if got := bytes.Count(all, []byte("\n")); got != tt.want || apierrors.IsRequestEntityTooLargeError(err) != tt.large || told != min(got, 1) {
				t.Errorf("%d changes, %v, told %d times", got, err, told)
			}
		})
	}
}

// TestKubeCalls_WatchByRequests: a program's watch through the cloud returns the apiserver's events for that program's
// rights only, from the version that it names. A watch without changes makes progress; and a revoked right ends it at the next call.
func TestKubeCalls_WatchByRequests(t *testing.T) {
	c := newCallFixture(t)
	calls, err := New(c.cluster.Config(), false, c.newGuard(), nil, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	c.createPod("elects", "elects")
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
	c.grantAccess("elects", "elects", "coordination.k8s.io", "leases")
	kit.Succeeds(t, settleTimeout, func() error {
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
	for begun, asked := time.Now(), 1; ; asked++ { // a watch without changes returns bookmarks
		if _, events = ask(after); len(events) > 0 {
			if events[0].Type != "BOOKMARK" {
				t.Errorf("%+v where nothing has changed", events)
			}
			t.Logf("a quiet watch made progress with question %d, after %.1f s", asked, time.Since(begun).Seconds())
			break
		}
		if time.Since(begun) > settleTimeout {
			t.Fatal("a quiet watch makes no progress")
		}
	}
	large, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "large-", Annotations: map[string]string{"large": strings.Repeat("x", 30<<10)},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slow := func(r *wire.KubeRequest) { after(r); r.MaxBytes = 16 << 10 }
	if code, _ := ask(slow); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a change that is larger than the link takes: code %d", code)
	}
	if code, events := ask(after); code != http.StatusOK || len(events) != 1 || events[0].Type != "ADDED" {
		t.Errorf("for a link that takes all: code %d, %d events", code, len(events))
	}
	list = &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: large.ResourceVersion}}
	c.revokeAccess("elects")
	kit.Succeeds(t, settleTimeout, func() error {
		if code, _ := ask(func(r *wire.KubeRequest) { r.Wait = 1 }); code != http.StatusForbidden {
			return fmt.Errorf("code %d", code)
		}
		return nil
	})
}
