package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/identities"
	"github.com/frond-edge/frond/test/kit"
)

// userKey returns a public nkey of a user that passes the validation of the custom resource.
func userKey(letter string) string { return "U" + strings.Repeat(letter, 55) }

// joinNode makes a gateway: its connected Node, its Lease and its identity.
func (i *installedCluster) joinNode(name string, spec identity.NodeIdentitySpec) {
	i.t.Helper()
	ctx := i.t.Context()
	node, err := i.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { // the test's context is over
		clean := installedCluster{t: i.t, client: i.client}
		clean.removeNode(name)
	})
	i.setLink(node.Name, corev1.ConditionTrue, "HeartbeatsArrive")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Minute)}}}
	if _, err := i.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		i.t.Fatal(err)
	}
	o, err := identities.Encode(identity.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	if err != nil {
		i.t.Fatal(err)
	}
	kit.Succeeds(i.t, 30*time.Second, func() error { // the kind may be new
		_, err := i.identityClient().Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

func (i *installedCluster) identityClient() dynamic.ResourceInterface {
	i.t.Helper()
	client, err := identities.NewClient(sharedCluster.Cluster(i.t).Config())
	if err != nil {
		i.t.Fatal(err)
	}
	return client
}

// setLink sets the link condition of a Node.
func (i *installedCluster) setLink(name string, status corev1.ConditionStatus, reason string) {
	i.t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"EdgeConnected","status":%q,"reason":%q}]}}`, status, reason)
	if _, err := i.client.CoreV1().Nodes().PatchStatus(i.t.Context(), name, []byte(patch)); err != nil {
		i.t.Fatal(err)
	}
}

func (i *installedCluster) readSpec(name string) identity.NodeIdentitySpec {
	i.t.Helper()
	o, err := i.identityClient().Get(i.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	id, err := identities.Decode(o)
	if err != nil {
		i.t.Fatal(err)
	}
	return id.Spec
}

func TestNodeList_States(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	now, day := time.Now(), 24*time.Hour
	at := func(d time.Duration) metav1.Time { return metav1.Time{Time: now.Add(d).UTC().Truncate(time.Second)} }
	revoked := at(-time.Hour)
	for name, spec := range map[string]identity.NodeIdentitySpec{
		"valid":     {Key: userKey("A"), Issued: at(-day), Expires: at(day)},
		"renewable": {Key: userKey("B"), Issued: at(-9 * day), Expires: at(-day)},
		"expired":   {Key: userKey("C"), Issued: at(-200 * day), Expires: at(-100 * day)},
		"revoked":   {Revoked: []string{userKey("D")}, RevokedAt: &revoked},
	} {
		i.joinNode(name, spec)
	}
	var listed []struct {
		Node, State string
		LastSeen    time.Time
	}
	if err := json.Unmarshal([]byte(i.mustRun("node", "list", "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, node := range listed {
		states[node.Node] = node.State
		if seen := now.Sub(node.LastSeen); seen < 30*time.Second || seen > 10*time.Minute {
			t.Errorf("%s was last seen %s ago, want about a minute", node.Node, seen)
		}
	}
	if diff := cmp.Diff(map[string]string{"valid": "valid", "renewable": "renewable", "expired": "expired", "revoked": "revoked"}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if out := i.mustRun("node", "list"); !strings.Contains(out, "LAST SEEN") || strings.Contains(out, userKey("A")) || !strings.Contains(out, userKey("A")[:12]) {
		t.Errorf("list prints\n%s", out)
	}
	if out := i.mustRun("node", "list", "-o", "wide"); !strings.Contains(out, userKey("A")) {
		t.Errorf("wide prints\n%s", out)
	}
}

// revokedNode is the output of frond node revoke -o json.
type revokedNode struct {
	LinkClosed bool
	exposedObjects
}

// exposedObjects are the objects that a node could read.
type exposedObjects struct{ Secrets, ConfigMaps, ServiceAccounts []string }

func TestNodeRevoke_WaitsForClosedLinks(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.joinNode("stolen", identity.NodeIdentitySpec{Key: userKey("E"), Previous: userKey("F"), Revoked: []string{userKey("G")}, Expires: metav1.Time{Time: time.Now().Add(time.Hour)}})
	ns := sharedCluster.Cluster(t).Namespace(t)
	i.createPodWithSecrets(ns, "stolen")
	if code, _, errs := i.runCommand("node", "revoke", "stolen"); code != 1 || !strings.Contains(errs, "--yes") || i.readSpec("stolen").RevokedAt != nil {
		t.Errorf("without --yes: code %d, %s", code, errs)
	}
	type end struct {
		code      int
		out, errs string
	}
	ended := make(chan end, 1)
	go func() {
		code, out, errs := i.runCommand("node", "revoke", "stolen", "--yes", "-o", "json")
		ended <- end{code, out, errs}
	}()
	kit.Succeeds(t, time.Minute, func() error {
		if i.readSpec("stolen").RevokedAt == nil {
			return errors.New("not revoked")
		}
		return nil
	})
	select {
	case e := <-ended:
		t.Fatalf("it did not wait until the link is closed: %+v", e)
	default:
	}
	i.setLink("stolen", corev1.ConditionFalse, "Revoked") // as cloudcore does when it has closed the link
	e := <-ended
	var done revokedNode
	if err := json.Unmarshal([]byte(e.out), &done); err != nil || e.code != 0 {
		t.Fatalf("%+v: %v", e, err)
	}
	spec := i.readSpec("stolen")
	if spec.Key != "" || spec.Previous != "" || spec.RevokedAt == nil {
		t.Errorf("it may still come in: %+v", spec)
	}
	if diff := cmp.Diff([]string{userKey("G"), userKey("E"), userKey("F")}, spec.Revoked); diff != "" {
		t.Errorf("revoked keys (-want +got):\n%s", diff)
	}
	want := exposedObjects{
		Secrets:    []string{ns + "/env", ns + "/mounted", ns + "/pull", ns + "/volume"},
		ConfigMaps: []string{ns + "/kube-root-ca.crt", ns + "/settings"}, ServiceAccounts: []string{ns + "/default"},
	}
	if diff := cmp.Diff(want, done.exposedObjects); diff != "" || !done.LinkClosed {
		t.Errorf("closed %t; exposed (-want +got):\n%s", done.LinkClosed, diff)
	}
	if out := i.mustRun("node", "revoke", "stolen", "--yes"); !strings.Contains(out, "Secrets to change:\n  "+ns+"/env") {
		t.Errorf("a second time it prints\n%s", out)
	}
	type exposure struct {
		Kind, Namespace, Name string
		ReferredBy            []string
		Withheld              bool
	}
	var listed struct{ Objects []exposure }
	if err := json.Unmarshal([]byte(i.mustRun("node", "exposed", "stolen", "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	volume := exposure{Kind: "Secret", Namespace: ns, Name: "volume", ReferredBy: []string{"persistentvolumes " + ns}}
	if !slices.ContainsFunc(listed.Objects, func(x exposure) bool { return cmp.Equal(x, volume) }) || len(listed.Objects) != 7 {
		t.Errorf("exposed lists %+v", listed.Objects)
	}
	if out := i.mustRun("node", "exposed", "stolen"); !strings.Contains(out, "pods "+ns+"/p") {
		t.Errorf("exposed prints\n%s", out)
	}
	if again := i.readSpec("stolen"); !again.RevokedAt.Equal(spec.RevokedAt) {
		t.Errorf("a second time it is revoked at %s, was %s", again.RevokedAt, spec.RevokedAt)
	}
	if out := i.mustRun("node", "list"); !strings.Contains(out, "revoked") {
		t.Errorf("list prints\n%s", out)
	}
}

func TestNodeRevoke_ReportsUnconfirmedLinks(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.joinNode("linked", identity.NodeIdentitySpec{Key: userKey("H")})
	i.setLink("linked", corev1.ConditionFalse, "NoHeartbeat") // a silent gateway may have a link
	code, out, errs := i.runCommand("node", "revoke", "linked", "--yes", "--timeout", "1s")
	if code != 1 || !strings.Contains(errs, "did not confirm within 1s") || !strings.Contains(out, "no pod is bound to linked") {
		t.Errorf("code %d, %s, %s", code, out, errs)
	}
	if spec := i.readSpec("linked"); spec.RevokedAt == nil || spec.Key != "" {
		t.Errorf("it may still come in: %+v", spec)
	}
	if code, _, errs := i.runCommand("node", "revoke", "nobody", "--yes"); code != 1 || !strings.Contains(errs, "no such gateway") {
		t.Errorf("nobody: code %d, %s", code, errs)
	}
	// A Node without an identity is kept out, too.
	if _, err := i.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { (&installedCluster{t: t, client: i.client}).removeNode("bare") })
	i.setLink("bare", corev1.ConditionFalse, "Revoked") // as cloudcore does
	i.mustRun("node", "revoke", "bare", "--yes")
	// The command does not wait for a deleted Node.
	if err := i.client.CoreV1().Nodes().Delete(t.Context(), "bare", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	code, out, errs = i.runCommand("node", "revoke", "bare", "--yes", "-o", "json")
	var done revokedNode
	if err := json.Unmarshal([]byte(out), &done); err != nil || code != 0 || done.LinkClosed {
		t.Errorf("a Node that is gone: code %d, %s%s: %v", code, out, errs, err)
	}
	if spec := i.readSpec("bare"); spec.RevokedAt == nil {
		t.Errorf("it may come in: %+v", spec)
	}
}

// removeNode undoes joinNode.
func (i *installedCluster) removeNode(name string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), 30*time.Second)
	defer cancel()
	i.confirmDeletion(identity.Resource+"."+identity.Group, "", name, name)
	for _, err := range []error{
		i.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		i.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{}),
		i.identityClient().Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			i.t.Errorf("clean up: %v", err)
		}
	}
}

// createPodWithSecrets binds a pod to a node that refers to Secrets in every possible way: itself, by its account, and by its volume.
func (i *installedCluster) createPodWithSecrets(ns, node string) {
	i.t.Helper()
	ctx, core := i.t.Context(), i.client.CoreV1()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef: &corev1.ObjectReference{Namespace: ns, Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: ns, Name: "volume"},
			}},
		},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: ns, AccessModes: volume.Spec.AccessModes, Resources: corev1.VolumeResourceRequirements{Requests: volume.Spec.Capacity},
		},
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			NodeName: node,
			Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("env")}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("settings")}},
			}}},
			Volumes: []corev1.Volume{
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mounted"}}},
				{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			},
		},
	}
	_, err := core.ServiceAccounts(ns).Create(ctx, account, metav1.CreateOptions{})
	if err == nil {
		_, err = core.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	}
	if err == nil {
		claim, err = core.PersistentVolumeClaims(ns).Create(ctx, claim, metav1.CreateOptions{})
	}
	if err == nil {
		claim.Status.Phase = corev1.ClaimBound
		_, err = core.PersistentVolumeClaims(ns).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = core.Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	}
	if err != nil {
		i.t.Fatal(err)
	}
}
