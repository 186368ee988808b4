package localapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/frond-edge/frond/leaf/localapi"
)

// TestTokenRequest_SurvivesOfflineReboot: a pod's token is requested from the cloud, and mounted again while the cloud cannot be asked.
func TestTokenRequest_SurvivesOfflineReboot(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			g.deliverObjects(newPod("web", "u1", "1"), newPod("old", "u0", "1"))
			g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
				writeAnswer(w, http.StatusCreated, authenticationv1.TokenRequest{
					TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"},
					Status:   authenticationv1.TokenRequestStatus{Token: "secret", ExpirationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute))},
				})
			})
			ask := func(name, uid string) (*authenticationv1.TokenRequest, error) {
				hour := int64(3600)
				return g.newClient(protobuf).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "sa", &authenticationv1.TokenRequest{
					Spec: authenticationv1.TokenRequestSpec{
						Audiences: []string{"api"}, ExpirationSeconds: &hour,
						BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: types.UID(uid)},
					},
				}, metav1.CreateOptions{})
			}
			for _, p := range [][2]string{{"old", "u0"}, {"web", "u1"}} {
				if got, err := ask(p[0], p[1]); err != nil || got.Status.Token != "secret" {
					t.Fatalf("online: %v, %+v", err, got)
				}
			}
			g.cloud.goOffline()
			g.stop()
			g.start()
			if got, err := ask("web", "u1"); err != nil || got.Status.Token != "secret" {
				t.Fatalf("offline: %v, %+v", err, got)
			}
			if _, err := ask("web", "another"); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("a token of another pod: %v", err)
			}
			// The token of a deleted pod is removed when the next token arrives.
			g.deliverTombstone(newPod("old", "u0", "2"))
			g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
				writeAnswer(w, http.StatusCreated, authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}})
			})
			if _, err := ask("web", "u1"); err != nil {
				t.Fatal(err)
			}
			if held, _ := g.store.List("frond.io", "tokens", ""); len(held) != 1 {
				t.Errorf("%d tokens are kept for one pod", len(held))
			}
		})
	}
}

// TestForward_PassesRequestsUnchanged: requests for the cloud are forwarded unchanged, and its refusals are returned unchanged.
func TestForward_PassesRequestsUnchanged(t *testing.T) {
	g := newGateway(t, true)
	g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		}
		writeAnswer(w, http.StatusOK, corev1.NamespaceList{TypeMeta: metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}, Items: []corev1.Namespace{{}}})
	})
	c := g.newClient(false).CoreV1()
	mirror := newPod("static", "", "")
	if _, err := c.Pods("default").Create(t.Context(), mirror, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v", err)
	}
	if l, err := c.Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"}); err != nil || len(l.Items) != 1 {
		t.Errorf("list: %v", err)
	}
	asked := g.cloud.requestsSeen()
	if len(asked) != 2 || asked[0].Path != "/api/v1/namespaces/default/pods" || !strings.Contains(string(asked[0].Body), "static") ||
		asked[1].Query != "labelSelector=a%3Db" {
		t.Errorf("calls: %+v", asked)
	}
}

func TestPatchTypes(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newPod("web", "u1", "1"))
	pods := g.newClient(false).CoreV1().Pods("default")
	for kind, patch := range map[types.PatchType]string{
		types.JSONPatchType:           `[{"op":"replace","path":"/status/phase","value":"Running"}]`,
		types.MergePatchType:          `{"status":{"message":"m"}}`,
		types.StrategicMergePatchType: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
	} {
		if _, err := pods.Patch(t.Context(), "web", kind, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	got, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || got.Status.Phase != corev1.PodRunning || got.Status.Message != "m" || len(got.Status.Conditions) != 1 {
		t.Errorf("after all patches: %v, %+v", err, got.Status)
	}
	_, err = pods.Patch(t.Context(), "web", types.ApplyPatchType, []byte(`{}`), metav1.PatchOptions{FieldManager: "x"}, "status")
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("server-side apply: %v", err)
	}
	got.Status.Message = "updated"
	if got, err = pods.UpdateStatus(t.Context(), got, metav1.UpdateOptions{}); err != nil || got.Status.Message != "updated" {
		t.Errorf("update: %v", err)
	}
	got.ResourceVersion = "1"
	got.Status.Message = "stale"
	if _, err = pods.UpdateStatus(t.Context(), got, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
}

func TestServer_LimitsRequestBodies(t *testing.T) {
	g := newGateway(t, true, func(c *localapi.Config) { c.MaxRequestBytes = 10_000 })
	g.cloud.goOnline(answerNotFound)
	g.deliverObjects(newPod("web", "u1", "1"))
	c := g.newClient(false).CoreV1()
	big := strings.Repeat("x", 20_000)
	if _, err := c.ConfigMaps("default").Create(t.Context(), newConfigMap("big", big), metav1.CreateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("call: %v", err)
	}
	patch := fmt.Appendf(nil, `{"status":{"message":%q}}`, big)
	if _, err := c.Pods("default").Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("patch: %v", err)
	}
	if n := len(g.cloud.requestsSeen()); n != 0 {
		t.Errorf("%d calls were made", n)
	}
}

// TestUpdate_ConcurrentStatusAndDelivery: the kubelet writes a status while the cloud changes the pod. Neither may undo the other.
func TestUpdate_ConcurrentStatusAndDelivery(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newPod("web", "u1", "1"))
	const rounds = 100
	var wg sync.WaitGroup
	wg.Go(func() {
		pods := g.newClient(true).CoreV1().Pods("default")
		for i := range rounds {
			patch := fmt.Appendf(nil, `{"metadata":{"uid":"u1"},"status":{"phase":"Running","message":"%d"}}`, i+1)
			if _, err := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
				t.Errorf("status %d: %v", i, err)
			}
		}
	})
	for i := range rounds {
		p := newPod("web", "u1", fmt.Sprint(i+2))
		p.Labels["round"] = fmt.Sprint(i + 1)
		g.deliverObjects(p)
	}
	wg.Wait()
	got, err := g.newClient(false).CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || got.Labels["round"] != fmt.Sprint(rounds) || got.Status.Message != fmt.Sprint(rounds) {
		t.Errorf("at the end: %v, label %s, status %s", err, got.Labels["round"], got.Status.Message)
	}
	var last corev1.Pod
	reports := g.sent.allReports()
	if err := json.Unmarshal(reports[len(reports)-1].Object, &last); err != nil || last.Status.Message != fmt.Sprint(rounds) {
		t.Errorf("last report: %v, %s", err, last.Status.Message)
	}
}

// TestWatch_Bookmarks: an idle watch gets the store's revision, so that it can resume there, and a bookmark is never ahead
// of an event of the watch.
func TestWatch_Bookmarks(t *testing.T) {
	g := newGateway(t, true, func(c *localapi.Config) { c.BookmarkEvery = 10 * time.Millisecond })
	yes := true
	w, err := g.newClient(true).CoreV1().Secrets("").Watch(t.Context(), metav1.ListOptions{
		AllowWatchBookmarks: true, SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if s, ok := e.Object.(*corev1.Secret); e.Type != watch.Bookmark || !ok || s.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Fatalf("end of the initial events: %+v", e)
	}
	g.deliverObjects(newConfigMap("a", "1")) // of another resource
	e = <-w.ResultChan()
	if want := fmt.Sprint(uint64(1e18) + g.store.Revision()); e.Type != watch.Bookmark || e.Object.(*corev1.Secret).ResourceVersion != want {
		t.Fatalf("bookmark: %+v, want version %s", e, want)
	}
}
