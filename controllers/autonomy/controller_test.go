package autonomy_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/autonomy"
	"github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// shared creates new namespaces with the service account that a pod needs, and evicts pods as Kubernetes does, only sooner.
var shared = kubetest.Shared{Options: kubetest.Options{
	Controllers:     []string{"serviceaccount-controller", "node-lifecycle-controller", "taint-eviction-controller"},
	ControllerFlags: []string{"--node-monitor-period=500ms", "--node-eviction-rate=10", "--node-monitor-grace-period=" + leaseGrace.String()},
}}

// leaseGrace is how old the lease of a Node may be.
const leaseGrace = 6 * time.Second

func TestMain(m *testing.M) { shared.Verify(m) }

// ownsEverything is an Ownership that owns every node.
type ownsEverything struct{}

func (ownsEverything) Owns(string) bool         { return true }
func (ownsEverything) Term(string) uint64       { return 1 }
func (ownsEverything) Changed() <-chan struct{} { return nil }
func (ownsEverything) LeaseValid() bool         { return true }

type tolerationEnv struct {
	*testing.T
	client    kubernetes.Interface
	kinds     dynamic.Interface
	namespace string
	// warnings are the warnings, by the object's kind and name.
	warnings chan string
}

// rules are the rights of a TolerationController and of the view of groups that it is given.
func rules() []rbacv1.PolicyRule { return append(autonomy.Rules(), membership.Rules()...) }

// newTolerationEnv installs the kind NodeGroup and starts a TolerationController.
func newTolerationEnv(t *testing.T) *tolerationEnv {
	t.Helper()
	w := newBareEnv(t)
	w.installKind()
	w.startController("frond-autonomy-test", rules(), zaptest.NewLogger(t))
	return w
}

func newBareEnv(t *testing.T) *tolerationEnv {
	t.Helper()
	cluster := shared.Cluster(t)
	kinds, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &tolerationEnv{T: t, client: cluster.Client(t), kinds: kinds, namespace: cluster.Namespace(t), warnings: make(chan string, 100)}
}

// startController runs a TolerationController with the given rights until the test ends, or stop is called.
func (w *tolerationEnv) startController(user string, rules []rbacv1.PolicyRule, log *zap.Logger) (groups *autonomy.NodeGroups, stop func()) {
	w.Helper()
	config := shared.Cluster(w).ConfigWithRules(w, user, rules)
	objects, err := podcache.New(config)
	if err != nil {
		w.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	groupClient, err := membership.NewGroupClient(config)
	if err != nil {
		w.Fatal(err)
	}
	view := membership.New(objects, membership.ListGroups(groupClient), log)
	warn := func(about corev1.ObjectReference, reason, _ string) {
		w.warnings <- reason + " " + about.Kind + " " + about.Name + " " + string(about.UID)
	}
	groups = autonomy.NewNodeGroups(view)
	keeper := autonomy.New(client, objects, groups, ownsEverything{}, warn, func(string) {}, nil, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return view.Start(gctx) })
	g.Go(func() error { return keeper.Start(gctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("keeper: %v", err)
		}
	})
	w.Cleanup(stop)
	return groups, stop
}

func (w *tolerationEnv) createNode(suffix string) string {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + suffix}}
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), n, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), n.Name, metav1.DeleteOptions{})
	})
	return n.Name
}

// createPod creates a pod that tolerates an unreachable node for that many seconds.
func (w *tolerationEnv) createPod(name, node string, seconds int64) {
	w.Helper()
	toleration := corev1.Toleration{
		Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{toleration}, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	kit.Succeeds(w, time.Minute, func() error { // until the namespace has its service account
		_, err := w.client.CoreV1().Pods(w.namespace).Create(w.Context(), p, metav1.CreateOptions{})
		return err
	})
}

// hasToleration returns a check that a pod tolerates an unreachable node for that long; nil is without limit.
func (w *tolerationEnv) hasToleration(pod string, seconds *int64) func() error {
	return func() error {
		p, err := w.client.CoreV1().Pods(w.namespace).Get(w.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, t := range p.Spec.Tolerations {
			if t.Key == corev1.TaintNodeUnreachable && !ptr.Equal(t.TolerationSeconds, seconds) {
				return fmt.Errorf("%s tolerates %v s", pod, ptr.Deref(t.TolerationSeconds, -1))
			}
		}
		return nil
	}
}

// annotateNode sets the annotation of a Node to a JSON value.
func (w *tolerationEnv) annotateNode(name, value string) {
	w.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, names.AnnotationAutonomy, value)
	if _, err := w.client.CoreV1().Nodes().Patch(w.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// TestTolerationController_FollowsNodeAnnotation changes the annotation of a Node: existing and new pods get its time,
// and their previous time when it is removed. The pods of another Node are not changed.
func TestTolerationController_FollowsNodeAnnotation(t *testing.T) {
	w := newTolerationEnv(t)
	calm, usual := w.createNode("calm"), w.createNode("usual")
	const hour = 3600
	w.createPod("early", calm, hour)
	w.createPod("other", usual, hour)
	w.annotateNode(calm, `"forever"`)
	kit.Succeeds(w, time.Minute, w.hasToleration("early", nil))
	w.createPod("late", calm, hour)
	kit.Succeeds(w, time.Minute, w.hasToleration("late", nil))
	if err := w.hasToleration("other", ptr.To[int64](hour))(); err != nil {
		t.Errorf("a pod of another node: %v", err)
	}
	w.annotateNode(calm, `"12h"`)
	kit.Succeeds(w, time.Minute, w.hasToleration("early", ptr.To[int64](12*3600)))
	w.annotateNode(calm, "null")
	kit.Succeeds(w, time.Minute, w.hasToleration("early", ptr.To[int64](hour)))
	kit.Succeeds(w, time.Minute, w.hasToleration("late", ptr.To[int64](hour)))
}
