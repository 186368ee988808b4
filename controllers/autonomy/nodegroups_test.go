package autonomy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
)

// changeTimeout is how long a change may take on a busy machine. The kind may be probed once a minute only.
const changeTimeout = 2 * time.Minute

func (w *tolerationEnv) groupClient() dynamic.ResourceInterface {
	return w.kinds.Resource(apps.GroupVersion().WithResource(apps.NodeGroupsResource))
}

func (w *tolerationEnv) definitionClient() dynamic.ResourceInterface {
	return w.kinds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

// installKind installs the kind and waits until it is served.
func (w *tolerationEnv) installKind() {
	w.Helper()
	all, err := crd.Definitions()
	if err != nil {
		w.Fatal(err)
	}
	for _, data := range all {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			w.Fatal(err)
		}
		if o.GetName() != apps.NodeGroupsResource+"."+apps.Group {
			continue
		}
		if _, err := w.definitionClient().Create(w.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			w.Fatal(err)
		}
	}
	kit.Succeeds(w, changeTimeout, func() error {
		_, err := w.groupClient().List(w.Context(), metav1.ListOptions{})
		return err
	})
}

// removeKind removes the kind, as in an older installation.
func (w *tolerationEnv) removeKind() {
	w.Helper()
	if err := w.definitionClient().Delete(w.Context(), apps.NodeGroupsResource+"."+apps.Group, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	kit.Succeeds(w, changeTimeout, func() error {
		switch _, err := w.groupClient().List(w.Context(), metav1.ListOptions{}); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("NodeGroups are still served")
	})
}

// createGroup creates a NodeGroup whose name includes the namespace.
func (w *tolerationEnv) createGroup(suffix, value string, nodes []string, labels map[string]string) types.UID {
	w.Helper()
	data, err := json.Marshal(&apps.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind},
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + suffix, Annotations: map[string]string{names.AnnotationAutonomy: value}},
		Spec:       apps.NodeGroupSpec{Nodes: nodes, MatchLabels: labels},
	})
	if err != nil {
		w.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(data); err != nil {
		w.Fatal(err)
	}
	made, err := w.groupClient().Create(w.Context(), o, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.groupClient().Delete(context.WithoutCancel(w.Context()), o.GetName(), metav1.DeleteOptions{})
	})
	return made.GetUID()
}

func (w *tolerationEnv) deleteGroup(suffix string) {
	w.Helper()
	if err := w.groupClient().Delete(w.Context(), w.namespace+"-"+suffix, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

// patchGroup merges a JSON patch into a group.
func (w *tolerationEnv) patchGroup(suffix, patch string) {
	w.Helper()
	if _, err := w.groupClient().Patch(w.Context(), w.namespace+"-"+suffix, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// annotationPatch returns a patch of the annotation.
func annotationPatch(value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationAutonomy, value)
}

// labelNode merges labels into a Node.
func (w *tolerationEnv) labelNode(node, labels string) {
	w.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":%s}}`, labels)
	if _, err := w.client.CoreV1().Nodes().Patch(w.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// TestTolerationController_FollowsGroupAnnotation changes the annotations of groups, their members and the annotation
// of the Node itself.
func TestTolerationController_FollowsGroupAnnotation(t *testing.T) {
	const hour = int64(3600)
	w := newTolerationEnv(t)
	node, other := w.createNode("in"), w.createNode("out")
	w.createPod("mine", node, hour)
	w.createPod("other", other, hour)
	stays := func(what string, seconds *int64) {
		t.Helper()
		t.Log(what)
		kit.Succeeds(t, changeTimeout, w.hasToleration("mine", seconds))
	}
	w.createGroup("named", "12h", []string{node}, nil)
	stays("the group that names it", ptr.To(12*hour))
	uid := w.createGroup("labelled", "forever", nil, map[string]string{"site": w.namespace})
	w.labelNode(node, fmt.Sprintf(`{"site":%q}`, w.namespace))
	stays("the longer one, by its new label", nil)
	w.annotateNode(node, `"2h"`)
	stays("its own word", ptr.To(2*hour))
	w.annotateNode(node, `"0s"`)
	stays("its own word, against any group", ptr.To(hour))
	w.annotateNode(node, `"soon"`)
	stays("its own word, but not understood", nil)
	w.annotateNode(node, "null")
	w.patchGroup("labelled", annotationPatch("13h"))
	stays("what the group says now", ptr.To(13*hour))
	w.patchGroup("labelled", annotationPatch("for ever"))
	stays("the other group, as this is not understood", ptr.To(12*hour))
	w.patchGroup("named", `{"spec":{"nodes":[]}}`)
	stays("nobody, as the group names it no more", ptr.To(hour))
	w.patchGroup("labelled", annotationPatch("13h"))
	stays("the group, understood again", ptr.To(13*hour))
	w.labelNode(node, `{"site":null}`)
	stays("nobody, without the label", ptr.To(hour))
	w.patchGroup("named", fmt.Sprintf(`{"spec":{"nodes":[%q]}}`, node))
	stays("the group that names it again", ptr.To(12*hour))
	w.deleteGroup("named")
	stays("nobody, as the group is gone", ptr.To(hour))
	if err := w.hasToleration("other", ptr.To(hour))(); err != nil {
		t.Errorf("a pod of another node: %v", err)
	}
	told := make([]string, len(w.warnings))
	for i := range told {
		told[i] = <-w.warnings
	}
	group := fmt.Sprintf("AutonomyNotUnderstood NodeGroup %s-labelled %s", w.namespace, uid)
	if want := []string{"AutonomyNotUnderstood Node " + node + " " + node, group}; !slices.Equal(told, want) {
		t.Errorf("people are told %q, want %q", told, want)
	}
}

// hasLogged returns a check that a line with this beginning was logged.
func hasLogged(lines *observer.ObservedLogs, beginning string) func() error {
	return func() error {
		for _, line := range lines.All() {
			if strings.HasPrefix(line.Message, beginning) {
				return nil
			}
		}
		return fmt.Errorf("%q was not logged", beginning)
	}
}

// newObservedLogger returns a logger whose warnings the test can read.
func newObservedLogger(t *testing.T) (*zap.Logger, *observer.ObservedLogs) {
	t.Helper()
	core, lines := observer.New(zapcore.WarnLevel)
	return zaptest.NewLogger(t, zaptest.WrapOptions(zap.WrapCore(func(test zapcore.Core) zapcore.Core { return zapcore.NewTee(test, core) }))), lines
}

// TestTolerationController_WorksWithoutNodeGroups simulates an older installation: Nodes are served as before, the
// missing kind is logged once, and the kind is detected when it is installed. When the kind is removed, so are the groups.
func TestTolerationController_WorksWithoutNodeGroups(t *testing.T) {
	const hour = int64(3600)
	w := newBareEnv(t)
	w.removeKind()
	log, lines := newObservedLogger(t)
	w.startController("frond-autonomy-test", rules(), log)
	node, member := w.createNode("own"), w.createNode("member")
	w.createPod("own", node, hour)
	w.createPod("member", member, hour)
	w.annotateNode(node, `"forever"`)
	kit.Succeeds(t, changeTimeout, w.hasToleration("own", nil))
	kit.Succeeds(t, changeTimeout, hasLogged(lines, "kind NodeGroup is not installed"))
	w.annotateNode(node, "null")
	kit.Succeeds(t, changeTimeout, w.hasToleration("own", ptr.To(hour)))
	w.installKind()
	w.createGroup("late", "12h", []string{member}, nil)
	kit.Succeeds(t, changeTimeout, w.hasToleration("member", ptr.To(12*hour)))
	if n := lines.FilterMessageSnippet("NodeGroup").Len(); n != 1 {
		t.Errorf("told %d times that the kind is missing", n)
	}
	w.removeKind()
	kit.Succeeds(t, changeTimeout, w.hasToleration("member", ptr.To(hour)))
}

// TestTolerationController_KeepsPodsWhileGroupsUnreadable starts a cloudcore with the rights of an older installation
// after one that kept a pod for a group: the pod keeps its time, as it is not known whether the group is gone. The
// annotations of Nodes apply. Once the rights are granted, the groups are read.
func TestTolerationController_KeepsPodsWhileGroupsUnreadable(t *testing.T) {
	const hour = int64(3600)
	w := newBareEnv(t)
	user := "old-" + w.namespace
	w.installKind()
	node, member := w.createNode("own"), w.createNode("member")
	w.createPod("own", node, hour)
	w.createPod("member", member, hour)
	w.createGroup("gone", "forever", []string{member}, nil)
	_, stop := w.startController("frond-autonomy-test", rules(), zaptest.NewLogger(t))
	kit.Succeeds(t, changeTimeout, w.hasToleration("member", nil))
	stop()
	w.deleteGroup("gone")

	older := slices.DeleteFunc(rules(), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, apps.Group) })
	log, lines := newObservedLogger(t)
	groups, _ := w.startController(user, older, log)
	kit.Succeeds(t, changeTimeout, hasLogged(lines, "NodeGroups may not be read"))
	w.annotateNode(node, `"12h"`)
	kit.Succeeds(t, changeTimeout, w.hasToleration("own", ptr.To(12*hour)))
	w.annotateNode(member, `"24h"`)
	kit.Succeeds(t, changeTimeout, w.hasToleration("member", ptr.To(24*hour)))
	w.annotateNode(member, "null")
	w.annotateNode(node, `"13h"`) // detected later
	kit.Succeeds(t, changeTimeout, w.hasToleration("own", ptr.To(13*hour)))
	if err := w.hasToleration("member", ptr.To(24*hour))(); err != nil {
		t.Errorf("taken away though a group may want it: %v", err)
	}
	if value, group, known := groups.Lookup(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: member}}); known {
		t.Errorf("%q of %q is told of a node that may be in a group", value, group)
	}
	role, err := w.client.RbacV1().ClusterRoles().Get(t.Context(), user, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = rules()
	if _, err := w.client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, w.hasToleration("member", ptr.To(hour)))
}
