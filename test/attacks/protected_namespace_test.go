package attacks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// protectedSecret is a Secret of Frond's own namespace, beside the real ones. It holds the canary, which is searched for in all received bytes.
const protectedSecret = "treasure"

// ownPath returns an API path in Frond's own namespace.
func ownPath(rest string) string { return "/api/v1/namespaces/" + names.Namespace + "/" + rest }

// createProtectedSecret creates the protected Secret.
func createProtectedSecret(t *testing.T) {
	t.Helper()
	secrets := kube.CoreV1().Secrets(names.Namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: protectedSecret}, StringData: map[string]string{"word": canary}}
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = secrets.Delete(context.WithoutCancel(t.Context()), protectedSecret, metav1.DeleteOptions{})
	})
}

// liftAdmission removes the admission policies that refuse pods of Frond's own namespace on gateways, until the test ends, after checking
// that they do refuse: the other defences must hold without them.
func liftAdmission(t *testing.T) {
	t.Helper()
	bound := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: corev1.PodSpec{NodeName: stolen, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pods := kube.CoreV1().Pods(names.Namespace)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := pods.Create(t.Context(), bound, dry); !apierrors.IsForbidden(err) {
		t.Errorf("a pod of %s on a gateway: %v, want a refusal at admission", names.Namespace, err)
	}
	bindings := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	all, err := bindings.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all.Items {
		if !strings.HasPrefix(b.Name, "frond-protected-") {
			continue
		}
		if err := bindings.Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			b.ResourceVersion, b.UID = "", ""
			if _, err := bindings.Create(context.WithoutCancel(t.Context()), &b, metav1.CreateOptions{}); err != nil {
				t.Errorf("admission policy %s not restored: %v", b.Name, err)
			}
		})
	}
	eventually(t, "the policies are gone", func(ctx context.Context) string {
		if _, err := pods.Create(ctx, bound, dry); apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return err.Error()
		}
		return ""
	})
}

// bindProtectedPod binds a pod of Frond's own namespace, which mounts the protected Secret and a token, to a gateway. A finalizer keeps the
// pod until the test ends, so that Kubernetes' own rules would give the gateway the objects that the pod refers to.
func bindProtectedPod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "smuggled-" + node}}
	accounts, pods := kube.CoreV1().ServiceAccounts(names.Namespace), kube.CoreV1().Pods(names.Namespace)
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "smuggled-" + node, Finalizers: []string{"frond.test/keep"}},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account.Name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: "localhost/frond/tools:dev", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
			}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: protectedSecret}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = pods.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		_ = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
		_ = accounts.Delete(ctx, account.Name, metav1.DeleteOptions{})
	})
	return pod
}

// protectedSubjects lists the subjects of Frond's own namespace that the hub holds for any gateway.
func protectedSubjects(t *testing.T) []string {
	t.Helper()
	js, err := jetstream.New(connectAdmin(t))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("desired.*.*.*."+names.Namespace+".*"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for subj := range info.State.Subjects {
		found = append(found, subj)
	}
	slices.Sort(found)
	return found
}

// awaitNodeEvent waits for an Event of a Node.
func awaitNodeEvent(t *testing.T, node, reason string) {
	t.Helper()
	eventually(t, "event "+reason+" of "+node, func(ctx context.Context) string {
		selector := fields.Set{"involvedObject.name": node, "reason": reason}.AsSelector().String()
		events, err := kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: selector})
		switch {
		case err != nil:
			return err.Error()
		case len(events.Items) == 0:
			return "no such event"
		}
		return ""
	})
}

// TestProtectedNamespace_IsNotPublished binds pods of Frond's own namespace to gateways and requests, as the attacker, the objects they refer
// to: nothing of the namespace is published or returned to any gateway, and the pods are evicted.
func TestProtectedNamespace_IsNotPublished(t *testing.T) {
	createProtectedSecret(t)
	liftAdmission(t)
	refused, evicted := counterDelta(t, "frond_kube_refused_total"), counterDelta(t, "frond_protected_pods_evicted_total")
	pod := bindProtectedPod(t, stolen)
	bindProtectedPod(t, victim)
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	bound := fmt.Appendf(nil, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[],"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":%q,"uid":%q}}}`, pod.Name, pod.UID)
	tries := map[string]wire.KubeRequest{
		"the Secret of the bound pod": {Method: http.MethodGet, Path: ownPath("secrets/" + protectedSecret)},
		"its issuer's key":            {Method: http.MethodGet, Path: ownPath("secrets/frond-cloudcore")},
		"all Secrets":                 {Method: http.MethodGet, Path: ownPath("secrets")},
		"a token of its account":      {Method: http.MethodPost, Path: ownPath("serviceaccounts/" + pod.Spec.ServiceAccountName + "/token"), ContentType: "application/json", Body: bound},
		"the bound pod":               {Method: http.MethodGet, Path: ownPath("pods/" + pod.Name)},
		"the pod's status":            {Method: http.MethodPatch, Path: ownPath("pods/" + pod.Name + "/status"), ContentType: "application/merge-patch+json", Body: []byte(`{"status":{"reason":"thief"}}`)},
		"a mirror pod there":          {Method: http.MethodPost, Path: ownPath("pods"), ContentType: "application/json", Body: mirrorPod(names.Namespace)},
	}
	for name, r := range tries {
		if reply := th.requestKube(t, r); reply.Code != http.StatusForbidden || !strings.Contains(string(reply.Body), "is protected") {
			t.Errorf("%s: %d %s %.300s", name, reply.Code, reply.Error, reply.Body)
		}
	}
	awaitCounter(t, "each refusal", refused, float64(len(tries)))
	awaitNodeEvent(t, stolen, "ProtectedObjectWithheld")
	awaitCounter(t, "each eviction", evicted, 2)
	for _, node := range []string{stolen, victim} {
		awaitNodeEvent(t, node, "ProtectedPodEvicted")
		got, err := kube.CoreV1().Pods(names.Namespace).Get(t.Context(), "smuggled-"+node, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp == nil {
			t.Errorf("the pod on %s is not deleted: %v", node, err)
		}
	}
	changeVictim(t) // so that everything before it has been published, too
	if found := protectedSubjects(t); len(found) > 0 {
		t.Errorf("the hub holds %q", found)
	}
	for name, r := range map[string]wire.KubeRequest{
		"pods of all namespaces":     {Method: http.MethodGet, Path: "/api/v1/pods", Query: "fieldSelector=spec.nodeName%3D" + stolen},
		"services of all namespaces": {Method: http.MethodGet, Path: "/api/v1/services"},
	} {
		if reply := th.requestKube(t, r); reply.Code != http.StatusOK || strings.Contains(string(reply.Body), `"`+names.Namespace+`"`) {
			t.Errorf("%s: %d %s %.300s", name, reply.Code, reply.Error, reply.Body)
		}
	}
}

// mirrorPod returns a mirror pod of the stolen node in a namespace.
func mirrorPod(namespace string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"static-%[1]s","namespace":%[2]q,"annotations":{"kubernetes.io/config.mirror":"x"}},
		"spec":{"nodeName":%[1]q,"containers":[{"name":"c","image":"x"}]}}`, stolen, namespace)
}

// TestProtectedNamespace_PrivilegedPodIsRefused: even a pod whose account may read every Secret of the cluster gets none of Frond's own
// through its gateway: not by a request, not in a list or a watch of all namespaces, and not by a scope.
func TestProtectedNamespace_PrivilegedPodIsRefused(t *testing.T) {
	createProtectedSecret(t)
	name := "reads-all"
	roles := kube.RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "of-" + stolen}},
	}
	if _, err := roles.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := roles.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = roles.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
		_ = roles.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
	})
	token := podToken(t, stolen)
	eventually(t, "the account may read all Secrets", func(ctx context.Context) string {
		review, err := kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || !review.Status.Authenticated {
			return fmt.Sprint("token: ", err)
		}
		return ""
	})
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	eventually(t, "the account reads what is not protected", func(context.Context) string {
		reply := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + stolen, Token: token})
		if reply.Code != http.StatusOK {
			return fmt.Sprintf("%d %s %.300s", reply.Code, reply.Error, reply.Body)
		}
		return ""
	})
	reply := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: ownPath("secrets/" + protectedSecret), Token: token})
	if reply.Code != http.StatusForbidden {
		t.Errorf("the Secret: %d %.300s", reply.Code, reply.Body)
	}
	// This right includes the victim's Secret, so the list excludes it: otherwise the search would find the canary.
	reply = th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/secrets", Query: "fieldSelector=metadata.name%21%3Dof-" + victim, Token: token})
	if reply.Code != http.StatusOK || strings.Contains(string(reply.Body), protectedSecret) || !strings.Contains(string(reply.Body), "of-"+stolen) {
		t.Errorf("all Secrets: %d %.300s", reply.Code, reply.Body)
	}
	watch := encodeJSON(t, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/secrets", Query: "fieldSelector=metadata.name%3D" + protectedSecret, Token: token, Wait: 1000})
	if answer := th.callCloud(t, subject.VerbWatch, watch); strings.Contains(string(answer), canary) {
		t.Errorf("the watch told %.300s", answer)
	}
	wants := func(namespaces ...string) []wire.ScopeVerdict {
		request := wire.ScopesRequest{Order: uint64(time.Now().UnixNano())}
		for _, namespace := range namespaces {
			scope := wire.Scope{Version: "v1", Resource: "secrets", Namespace: namespace}
			request.Wants = append(request.Wants, wire.ScopeWant{Scope: scope, Users: []string{"system:serviceaccount:default:of-" + stolen}})
		}
		var reply wire.ScopesReply
		if err := json.Unmarshal(th.callCloud(t, subject.VerbScopes, encodeJSON(t, request)), &reply); err != nil || len(reply.Verdicts) != len(namespaces) {
			t.Fatalf("scopes: %v %+v", err, reply)
		}
		return reply.Verdicts
	}
	verdicts := wants(names.Namespace, "kube-public")
	defer wants()
	for i, want := range []wire.ScopeReason{wire.ScopeForbidden, ""} {
		if got := verdicts[i]; got.Reason != want {
			t.Errorf("scope %s: %q %s", got.Scope, got.Reason, got.Message)
		}
	}
	if found := protectedSubjects(t); len(found) > 0 {
		t.Errorf("the hub holds %q", found)
	}
}

// TestProtectedNamespace_StaticPodIsDropped reports a static pod of the stolen gateway: it gets no mirror pod, so nothing follows from it.
func TestProtectedNamespace_StaticPodIsDropped(t *testing.T) {
	createProtectedSecret(t)
	dropped := counterDelta(t, "frond_reports_dropped_total", "reason=protected")
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	key := wire.Key{Resource: "pods", Namespace: names.Namespace, Name: "static-" + stolen}
	th.publish(subject.Of(subject.Report, stolen, key), th.inbox(), mirrorPod(names.Namespace), "Frond-Version: 1", "Frond-Op: apply", "Frond-UID: ",
		"Frond-Store: thief", "Frond-Order: 1", "Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
	awaitCounter(t, "the report", dropped, 1)
	pods, err := kube.CoreV1().Pods(names.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + stolen})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("pods of the namespace on the stolen gateway: %v, %v", pods.Items, err)
	}
}
