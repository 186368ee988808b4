// Package plan decides how a job goes on: which gateways get their step now, which steps are done with, and what the job's status says. Decide is a pure
// function of the job, its last status, the nodes, the tasks that exist and the time, so that any replica continues any job.
//
// A step is handed out by a NodeTask. The caller stores the status before it creates tasks, under the version that the status was decided from, and
// deletes a task only when the stored status has its outcome. So a step that is done is never handed out again.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
)

const (
	// MaxNodes bounds the nodes of a job: its status has to fit into one object of the API, which has 1.5 MiB. Function shorten bounds their entries.
	MaxNodes = 2000
	// maxImageEntries bounds the entries of single images in a status, so that all gateways of a job have them or none.
	maxImageEntries = 2000
	// answerGrace is how long a gateway with a link has to report beyond its own time limit. Cuts of less than half a minute stop its clock, but cloudcore
	// does not see them: an hour is more than a hundred of these.
	answerGrace = time.Hour
	// windowPeriod is how soon a changed maintenance window is noticed: nothing else wakes a job then.
	windowPeriod = time.Minute
	// DefaultDeadline is how long a job waits for gateways, KubeEdge's default of timeoutSeconds the limit of one.
	DefaultDeadline, defaultTimeout = 7 * 24 * time.Hour, 300 * time.Second
)

// The reasons of a node that waits.
const (
	ReasonOffline = "Offline"
	// ReasonNoAnswer is that of a gateway with a link that has not said that it has its step.
	ReasonNoAnswer = "NoAnswer"
	ReasonStopped  = "Stopped"
	ReasonWindow   = "MaintenanceWindowClosed"
)

// Job is what a job asks for.
type Job struct {
	Created     time.Time
	NodeNames   []string
	Selector    labels.Selector // nil: none
	Concurrency int32
	// Tolerate is the share of nodes that may fail; Timeout is of one node, Deadline of the whole job.
	Tolerate          float64
	Timeout, Deadline time.Duration
	// Stop is set while an operator has stopped the job; each new value of Resume continues it.
	Stop   bool
	Resume string
	// Images is how many images a node has to pull.
	Images int
	// Fault is why the job cannot be carried out at all; "" if it can.
	Fault string
}

// Node is what is known of a Node.
type Node struct {
	Gateway   bool
	Connected bool
	// Since is when Connected changed last.
	Since time.Time
}

// Input is all that Decide reads.
type Input struct {
	Now time.Time
	// Started is when this replica started. Before, it did not see reports that came.
	Started time.Time
	Job     Job
	Status  operations.ImagePrePullJobStatus
	// Nodes returns the gateways that a selector selects, Node one Node and whether it exists.
	Nodes func(labels.Selector) []string
	Node  func(name string) (Node, bool)
	// Window reports whether a node may be given work now, and when that changes; the zero time is never.
	Window func(node string) (open bool, next time.Time)
	// Tasks are the job's tasks by node.
	Tasks map[string]*jobs.NodeTask
}

// Decision is what is to be done, in this order: store Status, create the tasks of the nodes in Create, delete those in Delete.
type Decision struct {
	Status operations.ImagePrePullJobStatus
	Create []string
	Delete []*jobs.NodeTask
	// Next is when the job has to be looked at again though nothing has happened; the zero time is never.
	Next time.Time
}

// decision is a Decision that is being made.
type decision struct {
	Input
	out Decision
	// offline are the nodes without a link, silent those with a link that have not said that they have their step. Neither hold a place.
	offline, silent map[string]bool
}

// Decide returns how a job goes on.
func Decide(in Input) Decision {
	d := &decision{Input: in, offline: map[string]bool{}, silent: map[string]bool{}}
	d.out.Status = *in.Status.DeepCopy()
	if in.Status.Phase == "" {
		if finishedElsewhere(in.Status.State) {
			return d.out
		}
		d.begin()
	}
	if len(d.out.Status.NodeStatus) == 0 {
		return d.out // it could not begin
	}
	for i := range d.out.Status.NodeStatus {
		if e := &d.out.Status.NodeStatus[i]; !e.Phase.IsFinal() {
			d.follow(e)
			shorten(e, len(d.out.Status.NodeStatus))
		}
	}
	d.resume()
	d.handOut()
	d.removeTasks()
	d.conclude()
	return d.out
}

// finishedElsewhere reports whether a status without a phase is that of a job that KubeEdge's v1alpha1 has finished.
func finishedElsewhere(state string) bool {
	return strings.EqualFold(state, "successful") || strings.EqualFold(state, "failed")
}

// begin resolves the nodes of a new job, or says why the job cannot begin.
func (d *decision) begin() {
	s := &d.out.Status
	names, why := d.resolve()
	if why != "" {
		s.Phase, s.Reason, s.State = operations.JobFailure, cutText(why), "failed"
		return
	}
	s.Phase, s.NodeStatus = operations.JobInit, make([]operations.ImagePrePullNodeStatus, len(names))
	for i, name := range names {
		s.NodeStatus[i] = operations.ImagePrePullNodeStatus{NodeName: name, Phase: operations.NodePending}
	}
}

func (d *decision) resolve() (names []string, why string) {
	switch j := d.Job; {
	case j.Fault != "":
		return nil, j.Fault
	case len(j.NodeNames) > 0 && j.Selector != nil:
		return nil, "both nodeNames and labelSelector are set: set one of them"
	case len(j.NodeNames) == 0 && j.Selector == nil:
		return nil, "neither nodeNames nor labelSelector is set: set one of them"
	case j.Selector != nil:
		names = slices.Clone(d.Nodes(j.Selector))
	default:
		names = slices.Clone(j.NodeNames)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return nil, "no nodes were matched with selector" // KubeEdge's words
	case len(names) > MaxNodes:
		return nil, fmt.Sprintf("%d nodes are more than a job may have (%d): make several jobs", len(names), MaxNodes)
	}
	return names, ""
}

// follow brings the entry of a node up to date with its task, the Node and the time.
func (d *decision) follow(e *operations.ImagePrePullNodeStatus) {
	node, exists := d.Node(e.NodeName)
	task := d.Tasks[e.NodeName]
	d.offline[e.NodeName] = !node.Connected
	deadline := d.Job.Created.Add(d.Job.Deadline)
	switch {
	case task != nil && task.Status.Phase.IsFinal():
		d.adopt(e, task)
	case !exists:
		e.Phase, e.Reason = operations.NodeFailure, "the node does not exist"
	case !node.Gateway:
		e.Phase, e.Reason = operations.NodeFailure, "the node is no gateway"
	case !d.Now.Before(deadline):
		e.Phase, e.Reason = operations.NodeUnknown, fmt.Sprintf("not done within %s: frond.io/deadline", d.Job.Deadline)
	case task != nil || e.Phase == operations.NodeInProgress:
		d.wakeAt(deadline)
		d.followTask(e, task, node)
	default:
		d.wakeAt(deadline)
	}
}

// adopt takes over what a gateway has reported.
func (d *decision) adopt(e *operations.ImagePrePullNodeStatus, task *jobs.NodeTask) {
	s := task.Status.DeepCopy()
	e.Reason, e.ActionFlow = s.Reason, s.ActionFlow
	if s.Phase != "" {
		e.Phase = s.Phase
	}
	e.ImageStatus = s.ImageStatus
	if len(d.out.Status.NodeStatus)*d.Job.Images > maxImageEntries {
		e.ImageStatus = nil // the reason names the image that failed
	}
}

// followTask updates an entry whose step was handed out and has no outcome yet.
func (d *decision) followTask(e *operations.ImagePrePullNodeStatus, task *jobs.NodeTask, node Node) {
	if task != nil {
		d.adopt(e, task)
	}
	e.Phase = operations.NodeInProgress
	if !node.Connected {
		e.Reason = ReasonOffline // its time does not run
		return
	}
	if task == nil {
		e.Reason = ""
		d.out.Create = append(d.out.Create, e.NodeName) // the replica that handed it out did not come so far
		return
	}
	switch due := d.answerDue(task, node); {
	case task.Status.Phase == operations.NodePending: // it does another job's step, of which it reports too
	case d.Now.Before(due):
		d.wakeAt(due)
	case task.Status.Phase == "":
		e.Reason, d.silent[e.NodeName] = ReasonNoAnswer, true
	default:
		e.Phase, e.Reason = operations.NodeUnknown, fmt.Sprintf("the gateway has a link and reported nothing for %s", d.Job.Timeout+answerGrace)
	}
}

// answerDue returns when a gateway with a link has been silent for too long. Time counts from the last of its reports, the hand-out, the return of its
// link, and the start of this replica: reports wait while none runs.
func (d *decision) answerDue(task *jobs.NodeTask, node Node) time.Time {
	last := d.Started
	for _, t := range []time.Time{task.CreationTimestamp.Time, task.Status.Reported.Time, node.Since} {
		if t.After(last) {
			last = t
		}
	}
	return last.Add(d.Job.Timeout + answerGrace)
}

// resume follows a new value of the annotation.
func (d *decision) resume() {
	s := &d.out.Status
	if value := resumeValue(d.Job.Resume); value != "" && value != s.Resumed {
		s.Resumed, s.ForgivenFailures = value, d.failed()
	}
}

func (d *decision) failed() (n int32) {
	for _, e := range d.out.Status.NodeStatus {
		if e.Phase == operations.NodeFailure || e.Phase == operations.NodeUnknown {
			n++
		}
	}
	return n
}

// exceeds reports whether so many failed nodes are more than the job tolerates.
func (d *decision) exceeds(failed int32) bool {
	return float64(failed) > d.Job.Tolerate*float64(len(d.out.Status.NodeStatus))+1e-9 // 0.1 of 30 is 3
}

// stopped reports whether no node gets its step now.
func (d *decision) stopped() bool {
	return d.Job.Stop || d.exceeds(d.failed()-d.out.Status.ForgivenFailures)
}

// handOut gives work to waiting nodes, and says of the others why they wait.
func (d *decision) handOut() {
	free, stopped := max(d.Job.Concurrency, 1), d.stopped()
	for _, e := range d.out.Status.NodeStatus {
		if e.Phase == operations.NodeInProgress && !d.offline[e.NodeName] && !d.silent[e.NodeName] {
			free--
		}
	}
	for i := range d.out.Status.NodeStatus {
		e := &d.out.Status.NodeStatus[i]
		if e.Phase != operations.NodePending {
			continue
		}
		open, next := d.Window(e.NodeName)
		switch {
		case stopped:
			e.Reason = ReasonStopped
		case d.offline[e.NodeName]:
			e.Reason = ReasonOffline
		case !open:
			e.Reason = ReasonWindow
			d.wakeAt(next)
			d.wakeAt(d.Now.Add(windowPeriod))
		case free <= 0:
			e.Reason = ""
		default:
			free--
			e.Phase, e.Reason = operations.NodeInProgress, ""
			d.out.Create = append(d.out.Create, e.NodeName)
		}
	}
}

// removeTasks names the tasks whose outcome the stored status has, and those that the job has no node for.
func (d *decision) removeTasks() {
	waiting := map[string]bool{}
	for _, e := range d.Status.NodeStatus {
		waiting[e.NodeName] = !e.Phase.IsFinal()
	}
	for name, task := range d.Tasks {
		if d.Status.Phase != "" && !waiting[name] {
			d.out.Delete = append(d.out.Delete, task)
		}
	}
	slices.SortFunc(d.out.Delete, func(a, b *jobs.NodeTask) int { return cmp.Compare(a.Name, b.Name) })
}

// conclude sums up.
func (d *decision) conclude() {
	s := &d.out.Status
	s.Counts = operations.Counts{Total: int32(len(s.NodeStatus))} //nolint:gosec // at most MaxNodes
	for _, e := range s.NodeStatus {
		switch e.Phase {
		case operations.NodeSuccessful:
			s.Counts.Successful++
		case operations.NodeFailure, operations.NodeUnknown:
			s.Counts.Failed++
		case operations.NodeInProgress:
			s.Counts.InProgress++
		case operations.NodePending:
			s.Counts.Pending++
		}
		if !e.Phase.IsFinal() && d.offline[e.NodeName] {
			s.Counts.Offline++
		}
	}
	c := s.Counts
	failures := fmt.Sprintf("%d of %d nodes failed, %.4g %% are tolerated", c.Failed, c.Total, d.Job.Tolerate*100)
	switch {
	case c.Pending+c.InProgress == 0 && d.exceeds(c.Failed):
		s.Phase, s.Reason, s.State = operations.JobFailure, failures, "failed"
	case c.Pending+c.InProgress == 0:
		s.Phase, s.Reason, s.State = operations.JobCompleted, "", "successful"
	case d.exceeds(c.Failed - s.ForgivenFailures):
		s.Phase, s.Reason, s.State = operations.JobFailure, failures+": the other nodes wait until the job is resumed", "failed"
	case d.Job.Stop:
		s.Phase, s.Reason, s.State = operations.JobInProgress, "stopped by an operator", "prepulling"
	case c.Pending == c.Total:
		s.Phase, s.Reason, s.State = operations.JobInit, "", "prepulling"
	default:
		s.Phase, s.Reason, s.State = operations.JobInProgress, "", "prepulling"
	}
}

// wakeAt lowers Next.
func (d *decision) wakeAt(t time.Time) {
	if !t.IsZero() && (d.out.Next.IsZero() || t.Before(d.out.Next)) {
		d.out.Next = t
	}
}
