package localapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// allEncodings returns the encodings of clients; a kubelet uses protobuf.
func allEncodings() map[string]bool { return map[string]bool{"json": false, "protobuf": true} }

// TestPod_StatusPatchAndDelete: a kubelet's writes to a pod: status by strategic merge patch, deletion with its UID.
func TestPod_StatusPatchAndDelete(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			pods := g.newClient(protobuf).CoreV1().Pods("default")
			g.deliverObjects(newPod("web", "u1", "100"))
			got, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil || got.UID != "u1" || got.ResourceVersion == "100" {
				t.Fatalf("get: %v, uid %s, version %s", err, got.UID, got.ResourceVersion)
			}

			patch := `{"metadata":{"uid":"u1"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
			after, err := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			if err != nil || after.Status.Phase != corev1.PodRunning || after.ResourceVersion == got.ResourceVersion {
				t.Fatalf("patch: %v, %+v", err, after)
			}
			reports := g.sent.allReports()
			if len(reports) != 1 || reports[0].Op != wire.Apply || reports[0].UID != "u1" || reports[0].Version != "100" {
				t.Fatalf("reports: %+v", reports)
			}
			var reported corev1.Pod
			if err := json.Unmarshal(reports[0].Object, &reported); err != nil || reported.Status.Phase != corev1.PodRunning ||
				reported.Kind != "Pod" || reported.ResourceVersion != "100" {
				t.Fatalf("reported object: %v, %+v", err, reported)
			}
			if _, err := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
			if n := len(g.sent.allReports()); n != 1 {
				t.Errorf("a patch that changes nothing was reported: %d reports", n)
			}

			other := `{"metadata":{"uid":"u2"},"status":{"phase":"Failed"}}`
			if _, err := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(other), metav1.PatchOptions{}, "status"); !apierrors.IsInvalid(err) {
				t.Errorf("patch of another UID: %v", err)
			}

			zero, wrong, right := int64(0), types.UID("u2"), types.UID("u1")
			err = pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &wrong}})
			if !apierrors.IsConflict(err) {
				t.Errorf("delete of another UID: %v", err)
			}
			if err = pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &right}}); err != nil {
				t.Fatal(err)
			}
			if _, err := pods.Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("get after delete: %v", err)
			}
			if reports = g.sent.allReports(); len(reports) != 2 || reports[1].Op != wire.Delete || reports[1].UID != "u1" {
				t.Fatalf("reports: %+v", reports)
			}
		})
	}
}

func TestUpdate_ReportsBeforeStoring(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newPod("web", "u1", "100"))
	g.sent.refuseReports(errors.New("disk full"))
	pods := g.newClient(false).CoreV1().Pods("default")
	patch := []byte(`{"status":{"phase":"Running"}}`)
	if _, err := pods.Patch(t.Context(), "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); !apierrors.IsInternalError(err) {
		t.Fatalf("patch: %v", err)
	}
	if got, err := pods.Get(t.Context(), "web", metav1.GetOptions{}); err != nil || got.Status.Phase != corev1.PodPending {
		t.Fatalf("the store is ahead of the outbox: %v, %s", err, got.Status.Phase)
	}
}

// TestPod_SpecWritesGoToCloud: changes of the spec go to the cloud, and a status write cannot include them.
func TestPod_SpecWritesGoToCloud(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newPod("web", "u1", "100"))
	pods := g.newClient(false).CoreV1().Pods("default")
	patch := []byte(`{"spec":{"nodeName":"other"},"status":{"phase":"Running"}}`)
	got, err := pods.Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil || got.Spec.NodeName != gatewayNode || got.Status.Phase != corev1.PodRunning {
		t.Fatalf("status patch: %v, %+v", err, got)
	}
	if _, err := pods.Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("patch while offline: %v", err)
	}
	if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("graceful delete while offline: %v", err)
	}
}

func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: gatewayNode, Labels: map[string]string{corev1.LabelHostname: gatewayNode}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}},
	}
}

// TestRegister_Online: the kubelet's registration while the link is up: the cloud creates the Node.
func TestRegister_Online(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			var posts atomic.Int32
			g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
				var n corev1.Node
				if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&n) != nil || n.Kind != "Node" {
					answerNotFound(w, r)
					return
				}
				if made := posts.Add(1); made > 1 {
					answerStatus(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
					return
				}
				n.UID, n.ResourceVersion = "node-uid", "55"
				writeAnswer(w, http.StatusCreated, n)
			})
			nodes := g.newClient(protobuf).CoreV1().Nodes()
			made, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{})
			if err != nil || made.UID != "node-uid" {
				t.Fatalf("create: %v, %+v", err, made)
			}
			if _, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("second create: %v", err)
			}
			got, err := nodes.PatchStatus(t.Context(), gatewayNode, []byte(`{"metadata":{"annotations":{"a":"b"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`))
			if err != nil || got.Annotations["a"] != "b" || got.Status.Conditions[0].Status != corev1.ConditionTrue {
				t.Fatalf("patch: %v, %+v", err, got)
			}
			reports := g.sent.allReports()
			if len(reports) != 1 || reports[0].UID != "node-uid" || reports[0].Version != "55" {
				t.Fatalf("reports: %+v", reports)
			}
		})
	}
}

// TestRegister_ExistingNode: the store is new, the Node is not. The kubelet gets that answer, finds the Node here, and continues from it.
func TestRegister_ExistingNode(t *testing.T) {
	g := newGateway(t, false)
	g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			answerStatus(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
			return
		}
		n := newNode()
		n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		n.UID, n.ResourceVersion = "old-uid", "3"
		writeAnswer(w, http.StatusOK, n)
	})
	nodes := g.newClient(true).CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create: %v", err)
	}
	g.cloud.goOffline()
	got, err := nodes.PatchStatus(t.Context(), gatewayNode, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`))
	if err != nil || got.UID != "old-uid" {
		t.Fatalf("patch: %v, %+v", err, got)
	}
	if r := g.sent.allReports(); len(r) != 1 || r[0].UID != "old-uid" || r[0].Version != "3" {
		t.Errorf("reports: %+v", r)
	}
	l, err := nodes.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + gatewayNode})
	if err != nil || len(l.Items) != 1 {
		t.Errorf("the node is not listed before the first attach: %v", err)
	}
}

// TestRegister_NodeDeletedInKubernetes: the cloud keeps the objects of a deleted Node for ten minutes, including the Node,
// and a gateway that joins again meanwhile gets them. Its kubelet registers once, so the Node must be created then.
func TestRegister_NodeDeletedInKubernetes(t *testing.T) {
	g := newGateway(t, true)
	kept := newNode()
	kept.UID, kept.ResourceVersion = "deleted-uid", "3"
	g.deliverObjects(kept)
	nodes := g.newClient(true).CoreV1().Nodes()
	for when, refuse := range map[string]func(w http.ResponseWriter, r *http.Request){
		"offline": nil,
		"the Node is there": func(w http.ResponseWriter, _ *http.Request) {
			answerStatus(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		},
	} {
		if g.cloud.goOffline(); refuse != nil {
			g.cloud.goOnline(refuse)
		}
		if _, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: %v", when, err)
		}
		if got, err := nodes.Get(t.Context(), gatewayNode, metav1.GetOptions{}); err != nil || got.UID != "deleted-uid" {
			t.Errorf("%s: %v, %+v", when, err, got)
		}
	}
	g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		var n corev1.Node
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&n) != nil {
			answerNotFound(w, r)
			return
		}
		n.UID, n.ResourceVersion = "new-uid", "55"
		writeAnswer(w, http.StatusCreated, n)
	})
	if made, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{}); err != nil || made.UID != "new-uid" {
		t.Fatalf("create: %v, %+v", err, made)
	}
	if _, err := nodes.PatchStatus(t.Context(), gatewayNode, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)); err != nil {
		t.Fatal(err)
	}
	if r := g.sent.allReports(); len(r) != 1 || r[0].UID != "new-uid" || r[0].Version != "55" {
		t.Errorf("reports: %+v", r)
	}
}

// TestRegister_Offline: a Node created while the cloud cannot be asked is stored here and reported without a UID. It
// becomes the cloud's Node when that is delivered.
func TestRegister_Offline(t *testing.T) {
	g := newGateway(t, false)
	nodes := g.newClient(true).CoreV1().Nodes()
	if _, err := nodes.Get(t.Context(), gatewayNode, metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("get of an unknown node while offline: %v", err)
	}
	made, err := nodes.Create(t.Context(), newNode(), metav1.CreateOptions{})
	if err != nil || made.UID == "" {
		t.Fatalf("create: %v, %+v", err, made)
	}
	if _, err := nodes.PatchStatus(t.Context(), gatewayNode, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)); err != nil {
		t.Fatal(err)
	}
	reports := g.sent.allReports()
	if len(reports) != 2 || reports[0].UID != "" || reports[1].UID != "" || strings.Contains(string(reports[1].Object), string(made.UID)) {
		t.Fatalf("reports: %+v", reports)
	}
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: gatewayNode, OwnerReferences: []metav1.OwnerReference{{Kind: "Node", APIVersion: "v1", Name: gatewayNode, UID: made.UID}},
	}}
	if _, err := g.newClient(true).StorageV1().CSINodes().Create(t.Context(), csi, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if reports = g.sent.allReports(); len(reports) != 3 || strings.Contains(string(reports[2].Object), string(made.UID)) {
		t.Fatalf("a UID that the cloud has not given is reported: %s", reports[2].Object)
	}
	given := newNode()
	given.UID, given.ResourceVersion, given.Spec.PodCIDR = "node-uid", "9", "10.1.0.0/24"
	g.seq++
	if err := g.store.Replace(t.Context(), []wire.Message{newMessage(t, given, 5)}, "s", 5); err != nil {
		t.Fatal(err)
	}
	got, err := nodes.Get(t.Context(), gatewayNode, metav1.GetOptions{})
	if err != nil || got.UID != "node-uid" || got.Spec.PodCIDR == "" || got.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Fatalf("after delivery: %v, %+v", err, got)
	}
}

func TestLease_StaysInMemory(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, false)
			leases := g.newClient(protobuf).CoordinationV1().Leases("kube-node-lease")
			if _, err := leases.Get(t.Context(), gatewayNode, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Fatalf("get: %v", err)
			}
			if !g.api.LeaseRenewed().IsZero() {
				t.Error("renewed before it exists")
			}
			lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			first := g.api.LeaseRenewed()
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			again, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{})
			if err != nil || again.Spec.RenewTime == nil {
				t.Fatalf("update: %v", err)
			}
			if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("update with an old version: %v", err)
			}
			if first.IsZero() || !g.api.LeaseRenewed().After(first) {
				t.Error("the renewal was not noticed")
			}
			if held, _ := g.store.List("coordination.k8s.io", "leases", ""); len(held) != 0 {
				t.Errorf("written to disk: %v", held)
			}
		})
	}
}

func TestEvents_ReportedAndPatched(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, false)
			events := g.newClient(protobuf).CoreV1().Events("default")
			made, err := events.CreateWithEventNamespaceWithContext(t.Context(), &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web.1"}, Reason: "Started", Count: 1,
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web", Namespace: "default"},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := events.PatchWithEventNamespaceWithContext(t.Context(), made, []byte(`{"count":2}`)); err != nil {
				t.Fatal(err)
			}
			sent := g.sent.allEvents()
			if len(sent) != 2 || !strings.Contains(string(sent[1].Object), `"count":2`) {
				t.Fatalf("events: %+v", sent)
			}
			list, err := events.List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
			if err != nil || len(list.Items) != 1 || list.Items[0].Count != 2 {
				t.Fatalf("list: %v, %+v", err, list)
			}
		})
	}
}

// TestCSINode_OwnedByNode: a kubelet removes a CSINode that another Node owns, and creates its own. So the CSINode on a
// gateway is always served as owned by the served Node. That Node may get its UID only when the link is back, and a kubelet
// that did not find its own CSINode could not become ready.
func TestCSINode_OwnedByNode(t *testing.T) {
	owner := func(t *testing.T, g *gateway) (uid, owner types.UID) {
		t.Helper()
		n, err := g.newClient(true).CoreV1().Nodes().Get(t.Context(), gatewayNode, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		csi, err := g.newClient(true).StorageV1().CSINodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		if err != nil || len(csi.OwnerReferences) != 1 || csi.OwnerReferences[0].Kind != "Node" || csi.OwnerReferences[0].Name != n.Name {
			t.Fatalf("owners %+v, %v", csi.GetOwnerReferences(), err)
		}
		return n.UID, csi.OwnerReferences[0].UID
	}
	owned := func(by types.UID) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name: gatewayNode, OwnerReferences: []metav1.OwnerReference{{Kind: "Node", APIVersion: "v1", Name: gatewayNode, UID: by}},
		}}
	}
	delivered := func(t *testing.T, g *gateway) {
		t.Helper()
		given := newNode()
		given.UID, given.ResourceVersion = "node-uid", "9"
		g.seq++
		if err := g.store.Replace(t.Context(), []wire.Message{newMessage(t, given, 5)}, "s", 5); err != nil {
			t.Fatal(err)
		}
	}
	for name, made := range map[string]func(t *testing.T, g *gateway){
		"made here": func(t *testing.T, g *gateway) {
			t.Helper()
			n, err := g.newClient(true).CoreV1().Nodes().Get(t.Context(), gatewayNode, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.newClient(true).StorageV1().CSINodes().Create(t.Context(), owned(n.UID), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"found in the cloud": func(t *testing.T, g *gateway) {
			t.Helper()
			g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					answerStatus(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
					return
				}
				there := owned("node-uid")
				there.TypeMeta = metav1.TypeMeta{Kind: "CSINode", APIVersion: "storage.k8s.io/v1"}
				there.UID, there.ResourceVersion = "csi-uid", "4"
				writeAnswer(w, http.StatusOK, there)
			})
			if _, err := g.newClient(true).StorageV1().CSINodes().Create(t.Context(), owned("any"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Fatalf("create: %v", err)
			}
			g.cloud.goOffline()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, false)
			if _, err := g.newClient(true).CoreV1().Nodes().Create(t.Context(), newNode(), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			made(t, g)
			if uid, owner := owner(t, g); owner != uid {
				t.Errorf("the CSINode is %s's, the Node is %s", owner, uid)
			}
			delivered(t, g)
			if name == "found in the cloud" {
				return // a full attach without it shows that the cloud no longer has one
			}
			if uid, owner := owner(t, g); uid != "node-uid" || owner != uid {
				t.Errorf("after delivery the CSINode is %s's, the Node is %s", owner, uid)
			}
		})
	}
}

// TestDelete_LocalOnlyObject: a CSINode created while the cloud could not be asked can be deleted, with a link and without.
func TestDelete_LocalOnlyObject(t *testing.T) {
	g := newGateway(t, false)
	csi := g.newClient(true).StorageV1().CSINodes()
	for _, online := range []bool{false, true} {
		g.cloud.goOffline()
		if _, err := csi.Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if online {
			g.cloud.goOnline(func(w http.ResponseWriter, _ *http.Request) {
				answerStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			})
		}
		if err := csi.Delete(t.Context(), gatewayNode, metav1.DeleteOptions{}); err != nil {
			t.Errorf("online %v: %v", online, err)
		}
		if _, err := g.store.Get(wire.Key{Group: "storage.k8s.io", Resource: "csinodes", Name: gatewayNode}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("online %v: it is still here: %v", online, err)
		}
	}
	for _, r := range g.sent.allReports() {
		if r.Op == wire.Delete {
			t.Errorf("the end of what the cloud does not know is reported: %+v", r)
		}
	}
}
