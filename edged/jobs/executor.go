package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// repeatInterval is how often the outcomes of tasks that are still there, and the waiting ones, are reported again.
	repeatInterval = 10 * time.Minute
	// retryInterval is the delay after an error of the gateway's own disk.
	retryInterval = 5 * time.Second
)

// Sink takes a report; it is durable when Report returns.
type Sink interface {
	Report(ctx context.Context, m wire.Message) error
}

// Link reports whether the cloud is reachable.
type Link interface {
	State() (up bool, changed <-chan struct{})
}

// Images pulls images.
type Images interface {
	// Pull pulls an image and checks its digest, if its name has one. secret may be nil.
	Pull(ctx context.Context, image string, secret *corev1.Secret) error
	// Has reports whether an image is there that its name determines, by a digest.
	Has(ctx context.Context, image string) bool
}

// Host tells how much of the gateway is used.
type Host interface {
	// Usage returns percent.
	Usage(ctx context.Context, item operations.CheckItem) (float64, error)
}

// Config configures an Executor.
type Config struct {
	// Node is the gateway's name. Dir is the folder of the outcomes.
	Node, Dir string
	// RetryBase is the delay before an image is pulled again, which doubles each time; 0: 1 s.
	RetryBase time.Duration
}

// Executor does the steps of jobs.
type Executor struct {
	cfg     Config
	store   *store.Store
	images  Images
	host    Host
	link    Link
	sink    Sink
	results *resultFiles
	log     *zap.Logger
}

// New returns an Executor, which starts nothing.
func New(cfg Config, st *store.Store, images Images, host Host, link Link, sink Sink, log *zap.Logger) *Executor {
	cfg.RetryBase = cmp.Or(cfg.RetryBase, time.Second)
	return &Executor{cfg: cfg, store: st, images: images, host: host, link: link, sink: sink, results: &resultFiles{dir: cfg.Dir}, log: log}
}

// running is the step that is being done.
type running struct {
	task   *jobs.NodeTask
	cancel context.CancelFunc
	done   chan jobs.NodeTaskStatus
}

// Start does steps until ctx ends and then returns nil.
func (e *Executor) Start(ctx context.Context) error {
	if err := e.results.open(); err != nil {
		return err
	}
	repeat := time.NewTicker(repeatInterval)
	defer repeat.Stop()
	var current *running
	defer func() {
		if current != nil {
			current.cancel()
			<-current.done
		}
	}()
	reported := map[string]operations.NodePhase{} // what this process has reported of tasks that wait or are done, by their UID
	for ctx.Err() == nil {
		changes, err := e.store.Watch(jobs.Group, jobs.NodeTasksResource, "", e.store.Revision())
		if err != nil {
			return fmt.Errorf("watch tasks: %w", err)
		}
		again := e.step(ctx, &current, reported)
		e.await(ctx, changes, &current, again, repeat.C, reported)
		changes.Stop()
	}
	return nil
}

// step reports outcomes that are due, stops a step whose task is gone, and begins the next one. It returns whether it has to be called again soon.
func (e *Executor) step(ctx context.Context, current **running, reported map[string]operations.NodePhase) (again bool) {
	tasks := e.tasks()
	present := map[string]bool{}
	for _, task := range tasks {
		present[string(task.UID)] = true
	}
	if *current != nil && !present[string((*current).task.UID)] {
		(*current).cancel() // its outcome is not recorded
	}
	if err := e.results.forget(present); err != nil {
		e.log.Warn("outcome of a task not removed", zap.Error(err))
	}
	for _, task := range tasks {
		status, done := e.results.of(task)
		switch {
		case !done && *current == nil:
			*current = e.begin(ctx, task)
		case !done && (*current).task.UID != task.UID: // cloudcore does not wait for its outcome yet
			status = jobs.NodeTaskStatus{Phase: operations.NodePending, Reason: "waits for another step of the gateway"}
			fallthrough
		case done:
			again = !e.reportOnce(ctx, task, status, reported) || again
		}
	}
	return again
}

// reportOnce reports the status of a task unless this process has reported its phase, and returns whether it is reported.
func (e *Executor) reportOnce(ctx context.Context, task *jobs.NodeTask, status jobs.NodeTaskStatus, reported map[string]operations.NodePhase) bool {
	if reported[string(task.UID)] == status.Phase {
		return true
	}
	if err := e.report(ctx, task, status); err != nil {
		e.log.Warn("task not reported, trying again", zap.String("task", task.Name), zap.String("phase", string(status.Phase)), zap.Error(err))
		return false
	}
	reported[string(task.UID)] = status.Phase
	return true
}

// await returns when step has to be called again.
func (e *Executor) await(ctx context.Context, changes *store.Watcher, current **running, again bool, repeat <-chan time.Time, reported map[string]operations.NodePhase) {
	var done <-chan jobs.NodeTaskStatus
	if *current != nil {
		done = (*current).done
	}
	var retry <-chan time.Time
	if again {
		retry = time.After(retryInterval)
	}
	select {
	case <-ctx.Done():
	case <-changes.Events():
	case <-retry:
	case <-repeat:
		clear(reported)
	case status := <-done:
		task := (*current).task
		(*current).cancel()
		*current = nil
		if status.Phase == "" {
			return // it was stopped
		}
		if err := e.results.save(task, status); err != nil {
			e.log.Warn("outcome of a task not written to the disk: a restart would repeat the task", zap.String("task", task.Name), zap.Error(err))
		}
	}
}

// tasks returns the gateway's tasks, the oldest first.
func (e *Executor) tasks() []*jobs.NodeTask {
	entries, _ := e.store.List(jobs.Group, jobs.NodeTasksResource, "")
	var all []*jobs.NodeTask
	for _, entry := range entries {
		task := &jobs.NodeTask{}
		if err := json.Unmarshal(entry.Object, task); err != nil || task.UID == "" {
			e.log.Error("task unreadable, left out", zap.String("object", entry.Key.Human()), zap.Error(err))
			continue
		}
		if task.Spec.NodeName == e.cfg.Node {
			all = append(all, task)
		}
	}
	slices.SortFunc(all, func(a, b *jobs.NodeTask) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// begin does a step in a goroutine that ends with a value in done: a status without a phase if the step was stopped.
func (e *Executor) begin(ctx context.Context, task *jobs.NodeTask) *running {
	ctx, cancel := context.WithCancel(ctx)
	r := &running{task: task, cancel: cancel, done: make(chan jobs.NodeTaskStatus, 1)} // the value waits for Start
	e.log.Info("task begins", zap.String("task", task.Name), zap.String("job", task.Spec.Job.Name))
	go func() {
		status := e.execute(ctx, task)
		if ctx.Err() != nil {
			status = jobs.NodeTaskStatus{}
		}
		e.log.Info("task ended", zap.String("task", task.Name), zap.String("job", task.Spec.Job.Name), zap.String("phase", string(status.Phase)), zap.String("reason", status.Reason))
		r.done <- status
	}()
	return r
}

// execute does a step and returns its outcome.
func (e *Executor) execute(ctx context.Context, task *jobs.NodeTask) jobs.NodeTaskStatus {
	if task.Spec.ImagePrePull == nil {
		return jobs.NodeTaskStatus{Phase: operations.NodeFailure, Reason: "this version of edgecore does not know the step"}
	}
	p := &prePull{Executor: e, task: task, spec: task.Spec.ImagePrePull}
	return p.run(ctx)
}

// report reports the status of a task.
func (e *Executor) report(ctx context.Context, task *jobs.NodeTask, status jobs.NodeTaskStatus) error {
	object, err := json.Marshal(jobs.NodeTask{
		TypeMeta:   metav1.TypeMeta{APIVersion: jobs.GroupVersion().String(), Kind: jobs.NodeTaskKind},
		ObjectMeta: metav1.ObjectMeta{Name: task.Name}, Status: status,
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	err = e.sink.Report(ctx, wire.Message{
		Key: wire.Key{Group: jobs.Group, Resource: jobs.NodeTasksResource, Name: task.Name}, Op: wire.Apply, UID: string(task.UID),
		Time: time.Now().UTC(), Object: object,
	})
	if err != nil {
		return fmt.Errorf("report task %s: %w", task.Name, err)
	}
	return nil
}
