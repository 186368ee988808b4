package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/controllers/jobs/plan"
)

// start is when the jobs of the tests were created.
func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// fleet is what Decide reads, and does of its decisions what the controller does.
type fleet struct {
	now time.Time
	// started is when the replica started.
	started time.Time
	job     plan.Job
	status  operations.ImagePrePullJobStatus
	nodes   map[string]plan.Node
	closed  map[string]bool
	tasks   map[string]*jobs.NodeTask
	// view are the tasks as a cache has them.
	view map[string]*jobs.NodeTask
}

func newFleet(nodes ...string) *fleet {
	f := &fleet{now: start(), nodes: map[string]plan.Node{}, closed: map[string]bool{}, tasks: map[string]*jobs.NodeTask{}, job: plan.Job{
		Created: start(), NodeNames: nodes, Concurrency: 1, Tolerate: 0.1, Timeout: 5 * time.Minute, Deadline: plan.DefaultDeadline, Images: 1,
	}}
	for _, name := range nodes {
		f.nodes[name] = plan.Node{Gateway: true, Connected: true, Since: start().Add(-time.Hour)}
	}
	return f
}

func (f *fleet) decide() plan.Decision { return f.decideOn(f.tasks) }

// decideOn decides with what a cache has of the tasks.
func (f *fleet) decideOn(tasks map[string]*jobs.NodeTask) plan.Decision {
	return plan.Decide(plan.Input{
		Now: f.now, Started: f.started, Job: f.job, Status: f.status, Tasks: tasks,
		Nodes: func(labels.Selector) (all []string) {
			for name := range f.nodes {
				all = append(all, name)
			}
			return all
		},
		Node:   func(name string) (plan.Node, bool) { node, exists := f.nodes[name]; return node, exists },
		Window: func(name string) (bool, time.Time) { return !f.closed[name], f.now.Add(time.Hour) },
	})
}

// step decides, and does all of it.
func (f *fleet) step() plan.Decision {
	d := f.decide()
	f.status = d.Status
	for _, node := range d.Create {
		f.create(node)
	}
	for _, task := range d.Delete {
		delete(f.tasks, task.Spec.NodeName)
	}
	return d
}

func (f *fleet) create(node string) {
	if f.tasks[node] == nil {
		f.tasks[node] = &jobs.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node), CreationTimestamp: metav1.NewTime(f.now)}, Spec: jobs.NodeTaskSpec{NodeName: node},
		}
	}
}

func (f *fleet) answer(node string, phase operations.NodePhase) {
	task := f.tasks[node].DeepCopy() // a view keeps the version that it has
	f.tasks[node] = task
	task.Status = jobs.NodeTaskStatus{Phase: phase, Reason: "said " + string(phase), Reported: metav1.NewTime(f.now)}
}

func (f *fleet) connect(node string, up bool) {
	f.nodes[node] = plan.Node{Gateway: true, Connected: up, Since: f.now}
}

// show returns the phases of the job and its nodes.
func (f *fleet) show() string {
	text := string(f.status.Phase)
	for _, e := range f.status.NodeStatus {
		text += " " + e.NodeName + ":" + string(e.Phase)
		if e.Phase == operations.NodePending && e.Reason != "" {
			text += "/" + e.Reason
		}
	}
	return text
}

func (f *fleet) want(t *testing.T, want string) {
	t.Helper()
	if diff := cmp.Diff(want, f.show()); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func TestDecide_OneAfterTheOther(t *testing.T) {
	f := newFleet("c", "a", "b")
	f.job.Tolerate = 0.4
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending c:Pending")
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending c:Pending")
	f.answer("a", operations.NodeInProgress)
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending c:Pending")
	f.answer("a", operations.NodeSuccessful)
	f.step()
	f.want(t, "InProgress a:Successful b:InProgress c:Pending")
	if f.tasks["a"] == nil {
		t.Fatal("the task was deleted before its outcome was stored")
	}
	f.step()
	if f.tasks["a"] != nil {
		t.Fatal("the task is still there")
	}
	f.answer("b", operations.NodeFailure)
	f.step()
	f.want(t, "InProgress a:Successful b:Failure c:InProgress")
	f.answer("c", operations.NodeSuccessful)
	f.step()
	f.want(t, "Completed a:Successful b:Failure c:Successful")
	f.step()
	if len(f.tasks) > 0 {
		t.Errorf("tasks left: %v", f.tasks)
	}
	if want := (operations.Counts{Total: 3, Successful: 2, Failed: 1}); f.status.Counts != want {
		t.Errorf("counts %+v, want %+v", f.status.Counts, want)
	}
}

// A gateway without a link waits and fails nothing; it neither holds a place nor loses its turn.
func TestDecide_OfflineGatewaysWait(t *testing.T) {
	f := newFleet("a", "b", "c")
	f.connect("a", false)
	f.step()
	f.want(t, "InProgress a:Pending/Offline b:InProgress c:Pending")
	f.connect("b", false)
	f.step()
	f.want(t, "InProgress a:Pending/Offline b:InProgress c:InProgress")
	f.answer("c", operations.NodeSuccessful)
	f.now = f.now.Add(24 * time.Hour)
	f.step()
	f.want(t, "InProgress a:Pending/Offline b:InProgress c:Successful")
	f.connect("b", true)
	f.now = f.now.Add(5 * time.Minute) // its time began when its link came back
	f.step()
	f.want(t, "InProgress a:Pending/Offline b:InProgress c:Successful")
	f.connect("a", true)
	f.answer("b", operations.NodeSuccessful)
	f.step()
	f.want(t, "InProgress a:InProgress b:Successful c:Successful")
	f.answer("a", operations.NodeSuccessful)
	f.step()
	f.want(t, "Completed a:Successful b:Successful c:Successful")
}

func TestDecide_Deadline(t *testing.T) {
	f := newFleet("a", "b")
	f.job.Deadline, f.job.Tolerate = time.Hour, 0.5
	f.connect("a", false)
	if next := f.step().Next; !next.Equal(start().Add(time.Hour)) && !next.Equal(start().Add(65*time.Minute)) {
		t.Errorf("next look at %s", next)
	}
	f.answer("b", operations.NodeSuccessful)
	f.step()
	f.want(t, "InProgress a:Pending/Offline b:Successful")
	f.now = start().Add(time.Hour)
	f.step()
	f.want(t, "Completed a:Unknown b:Successful")
}

// A gateway that has begun, has a link and says nothing more is Unknown after its time and an hour, and its task goes.
func TestDecide_SilentGateway(t *testing.T) {
	f := newFleet("a", "b")
	f.job.Tolerate = 0.5
	f.step()
	f.now = f.now.Add(time.Minute)
	f.answer("a", operations.NodeInProgress)
	f.step()
	f.now = f.now.Add(65*time.Minute - time.Second)
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending")
	f.now = f.now.Add(time.Second)
	f.step()
	f.want(t, "InProgress a:Unknown b:InProgress")
	f.step()
	if f.tasks["a"] != nil {
		t.Error("the task is still there")
	}
}

// Two jobs reach one gateway together: the time of the second one does not run while the gateway does the step of the first.
func TestDecide_StepQueuedAtTheGateway(t *testing.T) {
	f := newFleet("a", "b")
	f.job.Deadline = 24 * time.Hour
	f.step()
	f.answer("a", operations.NodePending)
	f.now = f.now.Add(10 * time.Hour)
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending")
	f.answer("a", operations.NodeInProgress) // it begins now
	f.now = f.now.Add(6 * time.Minute)
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending")
	f.answer("a", operations.NodeSuccessful)
	f.step()
	f.want(t, "InProgress a:Successful b:InProgress")
}

// A gateway that has not said that it began fails by the deadline only. It keeps nobody else from beginning.
func TestDecide_GatewayThatNeverBegins(t *testing.T) {
	f := newFleet("a", "b")
	f.job.Deadline, f.job.Tolerate = 24*time.Hour, 0.5
	f.step()
	f.now = f.now.Add(6 * time.Minute)
	f.step()
	f.want(t, "InProgress a:InProgress b:Pending")
	f.now = f.now.Add(time.Hour)
	if next := f.step().Next; next.After(start().Add(24 * time.Hour)) {
		t.Errorf("next look at %s", next)
	}
	f.want(t, "InProgress a:InProgress b:InProgress")
	if got := f.status.NodeStatus[0].Reason; got != plan.ReasonNoAnswer {
		t.Errorf("reason %q", got)
	}
	f.answer("b", operations.NodeSuccessful)
	f.now = start().Add(24 * time.Hour)
	f.step()
	f.want(t, "Completed a:Unknown b:Successful")
}

// Cuts that are too short for cloudcore to see stop the gateway's clock: they fail nobody.
func TestDecide_ShortCuts(t *testing.T) {
	f := newFleet("a")
	f.step()
	f.answer("a", operations.NodeInProgress)
	f.now = f.now.Add(5*time.Minute + 3*25*time.Second) // its time limit and three cuts
	f.step()
	f.want(t, "InProgress a:InProgress")
}

// Reports wait in the stream while no cloudcore runs: a replica that has just started fails nobody.
func TestDecide_CloudcoreWasAway(t *testing.T) {
	f := newFleet("a")
	f.step()
	f.answer("a", operations.NodeInProgress)
	f.now = f.now.Add(10 * time.Hour)
	f.started = f.now
	f.step()
	f.want(t, "InProgress a:InProgress")
}

func TestDecide_TooManyFailuresStop(t *testing.T) {
	f := newFleet("a", "b", "c", "d")
	f.job.Concurrency, f.job.Tolerate = 2, 0.25
	f.step()
	f.answer("a", operations.NodeFailure)
	f.step()
	f.want(t, "InProgress a:Failure b:InProgress c:InProgress d:Pending") // one of four is tolerated
	f.answer("b", operations.NodeFailure)
	f.step()
	f.want(t, "Failure a:Failure b:Failure c:InProgress d:Pending/Stopped")
	f.answer("c", operations.NodeSuccessful)
	f.step()
	f.want(t, "Failure a:Failure b:Failure c:Successful d:Pending/Stopped")
	f.job.Resume = "1"
	f.step()
	f.want(t, "InProgress a:Failure b:Failure c:Successful d:InProgress")
	f.answer("d", operations.NodeFailure)
	f.step()
	f.want(t, "Failure a:Failure b:Failure c:Successful d:Failure")
}

func TestDecide_StopAndResume(t *testing.T) {
	f := newFleet("a", "b")
	f.step()
	f.job.Stop = true
	f.answer("a", operations.NodeSuccessful)
	f.step()
	f.want(t, "InProgress a:Successful b:Pending/Stopped")
	f.job.Stop = false
	f.step()
	f.want(t, "InProgress a:Successful b:InProgress")
}

func TestDecide_MaintenanceWindow(t *testing.T) {
	f := newFleet("a", "b")
	f.closed["a"] = true
	d := f.step()
	f.want(t, "InProgress a:Pending/MaintenanceWindowClosed b:InProgress")
	if want := f.now.Add(time.Minute); !d.Next.Equal(want) { // a window may be removed or opened meanwhile
		t.Errorf("next look at %s, want %s", d.Next, want)
	}
	f.closed["a"] = false
	f.job.Concurrency = 2
	f.step()
	f.want(t, "InProgress a:InProgress b:InProgress")
}

// A job that KubeEdge finished before its status had phases stays as it is, and one that it has not finished begins.
func TestDecide_JobsOfOlderKubeEdge(t *testing.T) {
	for state, finished := range map[string]bool{"successful": true, "failed": true, "Successful": true, "Failed": true, "prepulling": false, "Checking": false} {
		f := newFleet("a")
		f.status.State = state
		d := f.step()
		if kept := f.status.Phase == "" && f.status.State == state && len(d.Create) == 0 && d.Next.IsZero(); kept != finished {
			t.Errorf("%s: finished %v, status %+v", state, kept, f.status)
		}
	}
}

// A replica that crashed after it had stored the status leaves a node without its task.
func TestDecide_LostHandOutIsRepeated(t *testing.T) {
	f := newFleet("a")
	f.status = f.decide().Status
	if d := f.step(); !slices.Equal(d.Create, []string{"a"}) {
		t.Errorf("creates %v", d.Create)
	}
}

func TestDecide_NodesThatCannot(t *testing.T) {
	f := newFleet("a", "b", "c")
	f.job.Tolerate, f.job.Concurrency = 1, 3
	delete(f.nodes, "a")
	f.nodes["b"] = plan.Node{Connected: true}
	f.step()
	f.want(t, "InProgress a:Failure b:Failure c:InProgress")
}

func TestDecide_JobsThatCannotBegin(t *testing.T) {
	many := make([]string, plan.MaxNodes+1)
	for i := range many {
		many[i] = fmt.Sprintf("n-%d", i)
	}
	selector := labels.SelectorFromSet(labels.Set{"a": "b"})
	for name, job := range map[string]plan.Job{
		"fault": {Fault: "no images"}, "both": {NodeNames: []string{"a"}, Selector: selector}, "neither": {},
		"nobody": {Selector: selector}, "too many": {NodeNames: many},
	} {
		f := newFleet()
		f.job = job
		f.step()
		if f.status.Phase != operations.JobFailure || f.status.Reason == "" || len(f.status.NodeStatus) > 0 {
			t.Errorf("%s: %s %q", name, f.show(), f.status.Reason)
		}
		before := f.status
		if f.step(); !cmp.Equal(before, f.status) {
			t.Errorf("%s: the status changes again: %+v", name, f.status)
		}
	}
}

// TestDecide_RandomFleets: with links and windows that come and go, a clock that moves, replicas that crash between any two writes, and caches that are
// behind, no node begins a second time after its outcome is stored, not more nodes work than may, and every job ends.
func TestDecide_RandomFleets(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		var nodes []string
		for i := range 1 + r.IntN(8) {
			nodes = append(nodes, fmt.Sprint("n", i))
		}
		f := newFleet(nodes...)
		f.job.Concurrency, f.job.Tolerate = int32(1+r.IntN(3)), 1
		begun := map[string]int{}
		for range 3000 {
			if f.status.Phase == operations.JobCompleted && len(f.tasks) == 0 {
				break
			}
			f.randomStep(t, r, nodes, begun)
		}
		if f.status.Phase != operations.JobCompleted || len(f.tasks) > 0 {
			t.Fatalf("seed %d: %s, tasks %d", seed, f.show(), len(f.tasks))
		}
		for node, times := range begun {
			if times > 1 {
				t.Fatalf("seed %d: node %s began %d times", seed, node, times)
			}
		}
	}
}

func (f *fleet) randomStep(t *testing.T, r *rand.Rand, nodes []string, begun map[string]int) {
	t.Helper()
	node := nodes[r.IntN(len(nodes))]
	switch r.IntN(6) {
	case 0:
		f.connect(node, r.IntN(3) > 0)
	case 1:
		if f.tasks[node] != nil && !f.tasks[node].Status.Phase.IsFinal() {
			f.answer(node, []operations.NodePhase{operations.NodePending, operations.NodeInProgress, operations.NodeSuccessful, operations.NodeFailure}[r.IntN(4)])
		}
	case 2:
		f.now = f.now.Add(time.Duration(r.IntN(20)) * time.Minute)
		f.closed[node] = r.IntN(4) == 0
	default:
		if r.IntN(3) > 0 {
			f.view = maps.Clone(f.tasks) // else the cache of tasks is behind
		}
		d := f.decideOn(f.view)
		if working, given := f.working(d.Status), len(d.Create); given > 0 && f.gaveMore(d.Status) && working > f.job.Concurrency {
			t.Fatalf("%d nodes work, of %d: %+v", working, f.job.Concurrency, d.Status.NodeStatus)
		}
		crash := r.IntN(4)
		f.status = d.Status // the write that comes first
		if crash == 0 {
			return
		}
		for _, name := range d.Create {
			if f.tasks[name] == nil {
				begun[name]++
			}
			f.create(name)
		}
		if crash == 1 {
			return
		}
		for _, task := range d.Delete {
			delete(f.tasks, task.Spec.NodeName)
		}
	}
}

// working counts the nodes with a link that have their step and answer, in a status.
func (f *fleet) working(s operations.ImagePrePullJobStatus) (n int32) {
	for _, e := range s.NodeStatus {
		if e.Phase == operations.NodeInProgress && f.nodes[e.NodeName].Connected && e.Reason != plan.ReasonNoAnswer {
			n++
		}
	}
	return n
}

// gaveMore reports whether a node has its step in the next status, and waits in the present one.
func (f *fleet) gaveMore(next operations.ImagePrePullJobStatus) bool {
	for i, e := range f.status.NodeStatus {
		if e.Phase == operations.NodePending && next.NodeStatus[i].Phase == operations.NodeInProgress {
			return true
		}
	}
	return false
}

func TestParse(t *testing.T) {
	for text, want := range map[string]float64{"": 0.1, "0.1": 0.1, "10%": 0.1, "0": 0, "1": 1, "100%": 1, ".5": 0.5, "2.5%": 0.025} {
		o := job(func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.FailureTolerate = text })
		if p := plan.Parse(o); p.Fault != "" || p.Tolerate < want-1e-12 || p.Tolerate > want+1e-12 {
			t.Errorf("failureTolerate %q: %v %q", text, p.Tolerate, p.Fault)
		}
	}
	for name, change := range map[string]func(*operations.ImagePrePullJob){
		"share":    func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.FailureTolerate = "ten" },
		"negative": func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.FailureTolerate = "-0.1" },
		"NaN":      func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.FailureTolerate = "NaN" },
		"above":    func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.FailureTolerate = "101%" },
		"deadline": func(o *operations.ImagePrePullJob) {
			o.Annotations = map[string]string{names.AnnotationJobDeadline: "soon"}
		},
		"images": func(o *operations.ImagePrePullJob) { o.Spec.ImagePrePullTemplate.Images = nil },
		"selector": func(o *operations.ImagePrePullJob) {
			o.Spec.ImagePrePullTemplate.LabelSelector = &metav1.LabelSelector{}
		},
		"operator": func(o *operations.ImagePrePullJob) {
			o.Spec.ImagePrePullTemplate.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		},
	} {
		if p := plan.Parse(job(change)); p.Fault == "" || p.Deadline != plan.DefaultDeadline {
			t.Errorf("%s: no fault in %+v", name, p)
		}
	}
	o := job(func(o *operations.ImagePrePullJob) {
		o.Spec.ImagePrePullTemplate.TimeoutSeconds = ptr.To[uint32](0)
		o.Spec.ImagePrePullTemplate.TimeoutSecondsOnEachNode = ptr.To[uint32](7)
	})
	if p := plan.Parse(o); p.Timeout != 7*time.Second {
		t.Errorf("timeout %s", p.Timeout)
	}
	if p := plan.Parse(job(func(*operations.ImagePrePullJob) {})); p.Timeout != 5*time.Minute || p.Deadline != 168*time.Hour {
		t.Errorf("defaults %+v", p)
	}
}

func job(change func(*operations.ImagePrePullJob)) *operations.ImagePrePullJob {
	o := &operations.ImagePrePullJob{Spec: operations.ImagePrePullJobSpec{ImagePrePullTemplate: operations.ImagePrePullTemplate{
		Images: []string{"registry.example/app:1"}, NodeNames: []string{"edge-1"},
	}}}
	change(o)
	return o
}
