package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/yaml"

	apijobs "github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/jobs"
	"github.com/frond-edge/frond/controllers/jobs/taskreports"
	"github.com/frond-edge/frond/controllers/jobs/taskstore"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// env is an apiserver with the kinds of jobs, and gateways of a test's own.
type env struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   dynamic.Interface
	// user has cloudcore's rights.
	user *rest.Config
	// prefix is that of the names of all that the test makes: the kinds have no namespace.
	prefix string
}

// allGroups is a Groups without groups.
type allGroups struct{}

func (allGroups) Ready() bool                              { return true }
func (allGroups) GroupOf(string) (string, bool)            { return "", false }
func (allGroups) WindowOf(string) (open bool, t time.Time) { return true, time.Time{} }

// owner is an Ownership of the jobs of one test; owns may be switched.
type owner struct {
	prefix string
	owns   atomic.Bool
}

func (o *owner) Owns(key string) bool     { return o.owns.Load() && strings.Contains(key, o.prefix) }
func (o *owner) Term(string) uint64       { return 1 }
func (o *owner) Changed() <-chan struct{} { return nil }
func (o *owner) LeaseValid() bool         { return true }

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, cluster: shared.Cluster(t)}
	e.prefix = e.cluster.Namespace(t)
	var err error
	e.admin, err = dynamic.NewForConfig(e.cluster.Config())
	kit.Must(t, err)
	definitions, err := crd.Definitions()
	kit.Must(t, err)
	at := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		kit.Must(t, yaml.Unmarshal(data, &o.Object))
		if _, err := e.admin.Resource(at).Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for _, resource := range []dynamic.ResourceInterface{e.jobs(), e.tasks()} {
		kubetest.Eventually(t, time.Minute, func() error {
			_, err := resource.List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
	e.user = e.cluster.ConfigWithRules(t, "frond-jobs-test", jobs.Rules())
	return e
}

func (e *env) jobs() dynamic.ResourceInterface {
	return e.admin.Resource(operations.GroupVersion().WithResource(operations.ImagePrePullJobsResource))
}

func (e *env) tasks() dynamic.ResourceInterface {
	return e.admin.Resource(apijobs.GroupVersion().WithResource(apijobs.NodeTasksResource))
}

// replica is a cloudcore's part for jobs.
type replica struct {
	owner   *owner
	applier *taskreports.Applier
	stop    func()
}

// startReplica starts a replica that owns all jobs of the test.
func (e *env) startReplica() *replica {
	e.Helper()
	r := &replica{owner: &owner{prefix: e.prefix}}
	r.owner.owns.Store(true)
	log, registry := zaptest.NewLogger(e), prometheus.NewRegistry()
	tasks, err := taskstore.New(e.user)
	kit.Must(e, err)
	var objects cache.Cache
	kubetest.Eventually(e, time.Minute, func() error { // the authorizer is behind
		objects, err = cache.New(e.user, cache.Options{})
		return err
	})
	controller, err := jobs.New(e.user, tasks, objects, allGroups{}, r.owner, func(corev1.ObjectReference, string, string) {}, registry, log)
	kit.Must(e, err)
	r.applier = taskreports.New(tasks, func(context.Context, wire.Message) (bool, error) { return true, nil }, registry, log)
	stops := []func(){streamstest.StartPart(e.T, tasks.Start), streamstest.StartPart(e.T, controller.Start)}
	streamstest.WaitWithin(e.T, time.Minute, "the tasks are read", tasks.Synced)
	stops = append(stops, streamstest.StartPart(e.T, objects.Start)) // the last: a Node that is not read yet is not one that does not exist
	r.stop = func() {
		for i := range stops {
			stops[len(stops)-1-i]()
		}
	}
	return r
}

// node returns the name of a gateway of the test.
func (e *env) node(name string) string { return e.prefix + "-" + name }

// addNode creates a gateway.
func (e *env) addNode(name string, connected corev1.ConditionStatus) {
	e.Helper()
	nodes := e.cluster.Client(e).CoreV1().Nodes()
	_, err := nodes.Create(e.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: e.node(name), Labels: map[string]string{names.LabelEdge: "", "test": e.prefix},
	}}, metav1.CreateOptions{})
	kit.Must(e, err)
	e.setConnected(name, connected)
}

func (e *env) setConnected(name string, status corev1.ConditionStatus) {
	e.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"lastTransitionTime":%q}]}}`, names.ConditionConnected, status, time.Now().UTC().Format(time.RFC3339))
	_, err := e.cluster.Client(e).CoreV1().Nodes().Patch(e.Context(), e.node(name), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	kit.Must(e, err)
}

// createJob creates a job; template are its fields as JSON.
func (e *env) createJob(name, template string) error {
	e.Helper()
	o := &unstructured.Unstructured{}
	kit.Must(e, json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":"operations.kubeedge.io/v1alpha2","kind":"ImagePrePullJob","metadata":{"name":%q},
		"spec":{"imagePrePullTemplate":%s}}`, e.prefix+"-"+name, template), &o.Object))
	_, err := e.jobs().Create(e.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	return err
}

func (e *env) selected(more string) string {
	return fmt.Sprintf(`{"images":["registry.example/app:1"],"labelSelector":{"matchLabels":{"test":%q}}%s}`, e.prefix, more)
}

func (e *env) job(name string) *operations.ImagePrePullJob {
	e.Helper()
	o, err := e.jobs().Get(e.Context(), e.prefix+"-"+name, metav1.GetOptions{})
	kit.Must(e, err)
	return convert[operations.ImagePrePullJob](e.T, o)
}

func convert[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	data, err := json.Marshal(o)
	kit.Must(t, err)
	into := new(T)
	kit.Must(t, json.Unmarshal(data, into))
	return into
}

// awaitPhases waits until a job has a phase, and its nodes have theirs.
func (e *env) awaitPhases(name, want string) *operations.ImagePrePullJob {
	e.Helper()
	var job *operations.ImagePrePullJob
	kubetest.Eventually(e, 2*time.Minute, func() error {
		job = e.job(name)
		got := string(job.Status.Phase)
		for _, n := range job.Status.NodeStatus {
			got += " " + strings.TrimPrefix(n.NodeName, e.prefix+"-") + ":" + string(n.Phase)
			if n.Phase == operations.NodePending && n.Reason != "" {
				got += "/" + n.Reason
			}
		}
		if got != want {
			return fmt.Errorf("%s (%s), want %s", got, job.Status.Reason, want)
		}
		return nil
	})
	return job
}

// task returns the task of a gateway, nil if there is none.
func (e *env) task(job, node string) *apijobs.NodeTask {
	e.Helper()
	o, err := e.tasks().Get(e.Context(), apijobs.TaskName(e.job(job).UID, e.node(node)), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	kit.Must(e, err)
	return convert[apijobs.NodeTask](e.T, o)
}

func (e *env) awaitTask(job, node string) *apijobs.NodeTask {
	e.Helper()
	var task *apijobs.NodeTask
	kubetest.Eventually(e, 2*time.Minute, func() error {
		if task = e.task(job, node); task == nil {
			return errors.New("no task for " + node)
		}
		return nil
	})
	return task
}

// report applies a report until it succeeds, as the consumer does.
func (e *env) report(r *replica, node string, task *apijobs.NodeTask, status string) {
	e.Helper()
	kubetest.Eventually(e, time.Minute, func() error { return r.applier.Handle(e.Context(), reportOf(e.node(node), task, status)) })
}

func reportOf(node string, task *apijobs.NodeTask, status string) wire.Message {
	return wire.Message{
		Node: node, Op: wire.Apply, UID: string(task.UID), Key: wire.Key{Group: apijobs.Group, Resource: apijobs.NodeTasksResource, Name: task.Name},
		Object: fmt.Appendf(nil, `{"metadata":{"name":%q},"status":%s}`, task.Name, status),
	}
}

const (
	successful = `{"phase":"Successful","actionFlow":[{"action":"Check","status":"True","time":"2026-03-01T12:00:00Z"},{"action":"Pull","status":"True"}],
		"imageStatus":[{"image":"registry.example/app:1","status":"True"}]}`
	failure = `{"phase":"Failure","reason":"no such image"}`
)

func TestController_JobOverGateways(t *testing.T) {
	e := newEnv(t)
	e.addNode("a", corev1.ConditionTrue)
	e.addNode("b", corev1.ConditionFalse)
	r := e.startReplica()
	kit.Must(t, e.createJob("j", e.selected(`,"imageSecrets":"shop/pull","retryTimes":3,"timeoutSeconds":60,"checkItems":["mem"]`)))
	e.awaitPhases("j", "InProgress a:InProgress b:Pending/Offline")
	task := e.awaitTask("j", "a")
	if p := task.Spec.ImagePrePull; p == nil || p.Secret == nil || *p.Secret != (apijobs.SecretReference{Namespace: "shop", Name: "pull"}) || p.Retries != 3 || p.TimeoutSeconds != 60 ||
		len(p.CheckItems) != 1 || len(p.Images) != 1 {
		t.Errorf("task %+v", task.Spec)
	}
	e.report(r, "a", task, `{"phase":"Pending","reason":"waits","reported":"2099-01-01T00:00:00Z"}`)
	if s := e.task("j", "a").Status; s.Phase != operations.NodePending || s.Reported.IsZero() || s.Reported.After(time.Now().Add(time.Minute)) {
		t.Errorf("status %+v", s)
	}
	e.report(r, "a", task, `{"phase":"InProgress","reason":"0 of 1 images"}`)
	e.report(r, "a", task, successful)
	job := e.awaitPhases("j", "InProgress a:Successful b:Pending/Offline")
	if n := job.Status.NodeStatus[0]; len(n.ActionFlow) != 2 || len(n.ImageStatus) != 1 || n.ActionFlow[0].Time == "" {
		t.Errorf("status %+v", n)
	}
	kubetest.Eventually(t, time.Minute, func() error {
		if e.task("j", "a") != nil {
			return errors.New("the task of a is still there")
		}
		return nil
	})
	e.setConnected("b", corev1.ConditionTrue)
	e.report(r, "b", e.awaitTask("j", "b"), successful)
	job = e.awaitPhases("j", "Completed a:Successful b:Successful")
	if want := (operations.Counts{Total: 2, Successful: 2}); job.Status.Counts != want || job.Status.State != "successful" {
		t.Errorf("status %+v", job.Status)
	}
}

// A replica that ends in the middle, and one that goes on: no task is made a second time, and none is forgotten.
func TestController_AnotherReplicaGoesOn(t *testing.T) {
	e := newEnv(t)
	for _, name := range []string{"a", "b", "c"} {
		e.addNode(name, corev1.ConditionTrue)
	}
	first := e.startReplica()
	kit.Must(t, e.createJob("j", e.selected(`,"concurrency":2,"failureTolerate":"40%"`)))
	a := e.awaitTask("j", "a")
	b := e.awaitTask("j", "b")
	first.stop()
	second, third := e.startReplica(), e.startReplica() // two owners at a time, as at a takeover
	e.report(second, "a", a, successful)
	c := e.awaitTask("j", "c")
	e.report(third, "c", c, failure)
	e.awaitPhases("j", "InProgress a:Successful b:InProgress c:Failure")
	if now := e.task("j", "b"); now == nil || now.UID != b.UID {
		t.Errorf("the task of b is now %+v", now)
	}
	e.report(third, "b", b, successful)
	e.awaitPhases("j", "Completed a:Successful b:Successful c:Failure")
	for name, task := range map[string]*apijobs.NodeTask{"a": a, "b": b, "c": c} {
		kubetest.Eventually(t, time.Minute, func() error {
			if now := e.task("j", name); now != nil {
				return fmt.Errorf("task of %s is still there, uid %s, was %s", name, now.UID, task.UID)
			}
			return nil
		})
	}
}

func TestController_DeletedJobTakesItsTasksAway(t *testing.T) {
	e := newEnv(t)
	e.addNode("a", corev1.ConditionTrue)
	e.addNode("b", corev1.ConditionTrue)
	r := e.startReplica()
	kit.Must(t, e.createJob("j", e.selected("")))
	task := e.awaitTask("j", "a")
	kit.Must(t, e.jobs().Delete(t.Context(), e.prefix+"-j", metav1.DeleteOptions{}))
	kubetest.Eventually(t, time.Minute, func() error {
		_, err := e.tasks().Get(t.Context(), task.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the task is still there: %w", err)
		}
		return nil
	})
	kit.Must(t, r.applier.Handle(t.Context(), reportOf(e.node("a"), task, successful))) // too late, and no error
}

// A job that came from KubeEdge has the finalizer of its controller, which is gone.
func TestController_FinalizerOfKubeEdge(t *testing.T) {
	e := newEnv(t)
	e.startReplica()
	kit.Must(t, e.createJob("j", e.selected("")))
	e.awaitPhases("j", "Failure")
	const others = "example.com/other"
	_, err := e.jobs().Patch(t.Context(), e.prefix+"-j", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":["kubeedge.io/imageprepulljob-controller","`+others+`"]}}`), metav1.PatchOptions{})
	kit.Must(t, err)
	kit.Must(t, e.jobs().Delete(t.Context(), e.prefix+"-j", metav1.DeleteOptions{}))
	kubetest.Eventually(t, time.Minute, func() error {
		if left := e.job("j").Finalizers; len(left) != 1 || left[0] != others {
			return fmt.Errorf("finalizers %v", left)
		}
		return nil
	})
	_, err = e.jobs().Patch(t.Context(), e.prefix+"-j", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	kit.Must(t, err)
}

func TestController_FailuresStopAndResume(t *testing.T) {
	e := newEnv(t)
	for _, name := range []string{"a", "b"} {
		e.addNode(name, corev1.ConditionTrue)
	}
	r := e.startReplica()
	kit.Must(t, e.createJob("j", e.selected("")))
	e.report(r, "a", e.awaitTask("j", "a"), failure)
	job := e.awaitPhases("j", "Failure a:Failure b:Pending/Stopped")
	if job.Status.NodeStatus[0].Reason != "no such image" {
		t.Errorf("status %+v", job.Status)
	}
	_, err := e.jobs().Patch(t.Context(), e.prefix+"-j", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1"}}}`, names.AnnotationJobResume), metav1.PatchOptions{})
	kit.Must(t, err)
	e.report(r, "b", e.awaitTask("j", "b"), successful)
	e.awaitPhases("j", "Failure a:Failure b:Successful")
}

// A job that selects nobody, or that names a node that does not exist, says so.
func TestController_JobsThatCannotBegin(t *testing.T) {
	e := newEnv(t)
	e.startReplica()
	kit.Must(t, e.createJob("nobody", e.selected("")))
	e.awaitPhases("nobody", "Failure")
	kit.Must(t, e.createJob("missing", fmt.Sprintf(`{"images":["a"],"nodeNames":[%q]}`, e.node("x"))))
	e.awaitPhases("missing", "Failure x:Failure")
}

// TestReports_OfAnotherGateway: a gateway changes no task of another gateway, and no outcome; what it says is bounded.
func TestReports_OfAnotherGateway(t *testing.T) {
	e := newEnv(t)
	e.addNode("a", corev1.ConditionTrue)
	e.addNode("thief", corev1.ConditionFalse)
	r := e.startReplica()
	kit.Must(t, e.createJob("j", e.selected(`,"concurrency":1`)))
	task := e.awaitTask("j", "a")
	for name, m := range map[string]wire.Message{
		"foreign": reportOf(e.node("thief"), task, successful),
		"old":     reportOf(e.node("a"), &apijobs.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: task.Name, UID: "another"}}, successful),
		"gone":    reportOf(e.node("a"), &apijobs.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: "task-0", UID: task.UID}}, successful),
	} {
		if err := r.applier.Handle(t.Context(), m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, m := range map[string]wire.Message{
		"no JSON":    {Node: e.node("a"), Op: wire.Apply, Key: reportOf("", task, "").Key, UID: string(task.UID), Object: []byte("{")},
		"no phase":   reportOf(e.node("a"), task, `{"phase":"Unknown"}`),
		"other name": {Node: e.node("a"), Op: wire.Apply, Key: reportOf("", task, "").Key, UID: string(task.UID), Object: []byte(`{"metadata":{"name":"x"},"status":{"phase":"Failure"}}`)},
		"deletion":   {Node: e.node("a"), Op: wire.Delete, Key: reportOf("", task, "").Key, UID: string(task.UID)},
		"too long":   reportOf(e.node("a"), task, `{"phase":"Failure","reason":"`+strings.Repeat("x", 70<<10)+`"}`),
	} {
		if err := r.applier.Handle(t.Context(), m); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("%s: %v, want ErrPermanent", name, err)
		}
	}
	if now := e.task("j", "a"); now == nil || now.Status.Phase != "" {
		t.Fatalf("task %+v", now)
	}
	e.report(r, "a", task, `{"phase":"Failure","reason":"`+strings.Repeat("x", 10000)+`\u001b[2J","actionFlow":[{"action":"rm -rf /","status":"True"},
		{"action":"Pull","status":"Maybe","time":"$(date)"}],"imageStatus":[{"image":"registry.example/other:1","status":"True"}]}`)
	job := e.awaitPhases("j", "Failure a:Failure thief:Pending/Stopped")
	n := job.Status.NodeStatus[0]
	if len(n.Reason) > 200 || strings.Contains(n.Reason, "\x1b") || len(n.ActionFlow) != 1 || n.ActionFlow[0].Status != metav1.ConditionUnknown || n.ActionFlow[0].Time != "" || len(n.ImageStatus) > 0 {
		t.Errorf("status %+v", n)
	}
}

// TestDefinition_Refusals: what can never be an image, a Secret or a share is refused by the apiserver, and no field of a job changes.
func TestDefinition_Refusals(t *testing.T) {
	e := newEnv(t)
	for name, template := range map[string]string{
		"shell":      `{"images":["$(reboot)"],"nodeNames":["a"]}`,
		"semicolon":  `{"images":["a;reboot"],"nodeNames":["a"]}`,
		"option":     `{"images":["--help"],"nodeNames":["a"]}`,
		"path":       `{"images":["../../etc/passwd"],"nodeNames":["a"]}`,
		"newline":    `{"images":["a\nb"],"nodeNames":["a"]}`,
		"secret":     `{"images":["a"],"nodeNames":["a"],"imageSecrets":"../x"}`,
		"secret dir": `{"images":["a"],"nodeNames":["a"],"imageSecrets":"ns/../x"}`,
		"share":      `{"images":["a"],"nodeNames":["a"],"failureTolerate":"many"}`,
		"check":      `{"images":["a"],"nodeNames":["a"],"checkItems":["shell"]}`,
		"field":      `{"images":["a"],"nodeNames":["a"],"command":"reboot"}`,
	} {
		if err := e.createJob("refused", template); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	kit.Must(t, e.createJob("kept", `{"images":["registry.example:5000/a/b@sha256:0123"],"nodeNames":["a"],"failureTolerate":"10%"}`))
	_, err := e.jobs().Patch(t.Context(), e.prefix+"-kept", types.MergePatchType, []byte(`{"spec":{"imagePrePullTemplate":{"images":["b"]}}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("change of the spec: %v", err)
	}
}
