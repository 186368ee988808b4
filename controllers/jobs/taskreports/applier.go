// Package taskreports applies what gateways report of the tasks that they were given: it writes the status of the NodeTask. A report is applied only
// for a task of the very node, and changes no outcome that is there already. What a gateway says is bounded: of images that are not the task's
// nothing is taken, and texts are cut.
package taskreports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// maxReport bounds a reported object: 64 images with a reason each.
	maxReport = 64 << 10
	// maxText bounds each reason that is taken over, maxActions the actions.
	maxText, maxActions = 200, 4
	// writesPerSecond bounds the writes of one cloudcore for tasks, readsPerSecond the reads that reports of unknown tasks cause.
	writesPerSecond, readsPerSecond, burst = 50, 10, 50
	// stampPeriod is how exact the time of the last report is where nothing else changes.
	stampPeriod = time.Minute
)

// errBusy says that too many unknown tasks are reported of, errManyWrites that more has to be written than may be.
var (
	errBusy       = errors.New("too many reports of unknown tasks")
	errManyWrites = errors.New("too many reports of tasks at a time")
)

// LatestCheck asks the stream's leader whether a report is still the newest of its object.
type LatestCheck func(ctx context.Context, m wire.Message) (bool, error)

// Tasks are the NodeTasks.
type Tasks interface {
	// Get returns a task from memory, Read from the apiserver.
	Get(name string) (*jobs.NodeTask, bool)
	Read(ctx context.Context, name string) (*jobs.NodeTask, error)
	// SetStatus replaces the status of the version that was read.
	SetStatus(ctx context.Context, task *jobs.NodeTask, status jobs.NodeTaskStatus) error
}

// Applier applies the reports of tasks. It is stateless and may be called concurrently.
type Applier struct {
	tasks         Tasks
	isLatest      LatestCheck
	writes, reads *rate.Limiter
	dropped       *prometheus.CounterVec
	log           *zap.Logger
}

// New returns an Applier.
func New(tasks Tasks, isLatest LatestCheck, metrics prometheus.Registerer, log *zap.Logger) *Applier {
	return &Applier{
		tasks: tasks, isLatest: isLatest, writes: rate.NewLimiter(writesPerSecond, burst), reads: rate.NewLimiter(readsPerSecond, burst), log: log,
		dropped: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "frond_jobs_reports_dropped_total",
			Help: "Reports of tasks that were rightly not applied, by reason: foreign (a task of another node), gone (the task was deleted), final (the outcome is known), replaced (a newer report is in the stream), busy (progress, while too many reports come).",
		}, []string{"reason"}),
	}
}

// Handles reports whether a report is of a task.
func Handles(key wire.Key) bool {
	return key.Group == jobs.Group && key.Resource == jobs.NodeTasksResource
}

// Handle applies one report. It returns nil if the report is applied or rightly dropped. An error that wraps wire.ErrPermanent can never succeed; one
// that wraps wire.ErrRefused is Kubernetes' refusal; any other may succeed later.
func (a *Applier) Handle(ctx context.Context, m wire.Message) error {
	reported, err := decode(m)
	if err != nil {
		return err
	}
	task, err := a.find(ctx, m)
	switch {
	case errors.Is(err, errBusy):
		return errors.Join(wire.ErrRefused, err)
	case apierrors.IsNotFound(err):
		return a.drop(m, "gone")
	case err != nil:
		return fmt.Errorf("read task %s: %w", m.Key.Name, err)
	case task.Spec.NodeName != m.Node:
		return a.drop(m, "foreign")
	case string(task.UID) != m.UID:
		return a.drop(m, "gone") // of an earlier task of the name
	case task.Status.Phase.IsFinal():
		return a.drop(m, "final")
	}
	if last, err := a.isLatest(ctx, m); err != nil {
		return err
	} else if !last {
		return a.drop(m, "replaced")
	}
	next := sanitize(task, reported)
	if next.Reported = metav1.Now(); unchanged(task.Status, next) {
		return nil
	}
	if !a.writes.Allow() { // the worker serves the reports of pods and nodes too: it does not wait
		if next.Phase == task.Status.Phase {
			return a.drop(m, "busy")
		}
		return fmt.Errorf("status of task %s: %w", task.Name, errManyWrites)
	}
	switch err := a.tasks.SetStatus(ctx, task, next); {
	case apierrors.IsNotFound(err):
		return a.drop(m, "gone")
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return errors.Join(wire.ErrPermanent, err)
	case apierrors.IsForbidden(err):
		return errors.Join(wire.ErrRefused, err)
	case err != nil:
		return fmt.Errorf("status of task %s from %s: %w", task.Name, m.Node, err) // a conflict: the cache is behind
	}
	return nil
}

// unchanged reports whether a report says what another one has said just before.
func unchanged(last, next jobs.NodeTaskStatus) bool {
	recent := next.Reported.Sub(last.Reported.Time) < stampPeriod
	last.Reported = next.Reported
	return recent && apiequality.Semantic.DeepEqual(last, next)
}

// find returns a task from memory, or from the apiserver if it is not there.
func (a *Applier) find(ctx context.Context, m wire.Message) (*jobs.NodeTask, error) {
	if task, exists := a.tasks.Get(m.Key.Name); exists && task.Spec.NodeName == m.Node && string(task.UID) == m.UID {
		return task, nil
	}
	if !a.reads.Allow() {
		return nil, errBusy
	}
	return a.tasks.Read(ctx, m.Key.Name)
}

func (a *Applier) drop(m wire.Message, reason string) error {
	a.dropped.WithLabelValues(reason).Inc()
	a.log.Debug("report of a task dropped", zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.String("reason", reason))
	return nil
}

// decode returns the reported status. Its errors wrap wire.ErrPermanent.
func decode(m wire.Message) (jobs.NodeTaskStatus, error) {
	var reported jobs.NodeTask
	switch {
	case m.Op != wire.Apply:
		return reported.Status, fmt.Errorf("%w: %s of %s", wire.ErrPermanent, m.Op, m.Key.Human())
	case len(m.Object) > maxReport:
		return reported.Status, fmt.Errorf("%w: report of %d bytes, at most %d", wire.ErrPermanent, len(m.Object), maxReport)
	}
	if err := json.Unmarshal(m.Object, &reported); err != nil {
		return reported.Status, fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	switch {
	case reported.Name != m.Key.Name:
		return reported.Status, fmt.Errorf("%w: object is %.80q", wire.ErrPermanent, reported.Name)
	case !slices.Contains([]operations.NodePhase{operations.NodePending, operations.NodeInProgress, operations.NodeSuccessful, operations.NodeFailure}, reported.Status.Phase):
		return reported.Status, fmt.Errorf("%w: phase %.20q", wire.ErrPermanent, reported.Status.Phase)
	}
	return reported.Status, nil
}

// sanitize returns the part of a reported status that can belong to the task.
func sanitize(task *jobs.NodeTask, reported jobs.NodeTaskStatus) jobs.NodeTaskStatus {
	status := jobs.NodeTaskStatus{Phase: reported.Phase, Reason: cut(reported.Reason)}
	for _, action := range reported.ActionFlow[:min(len(reported.ActionFlow), maxActions)] {
		if action.Action != operations.ActionCheck && action.Action != operations.ActionPull {
			continue
		}
		if _, err := time.Parse(time.RFC3339, action.Time); err != nil {
			action.Time = ""
		}
		status.ActionFlow = append(status.ActionFlow, operations.ActionStatus{
			Action: action.Action, Status: condition(action.Status), Reason: cut(action.Reason), Time: action.Time,
		})
	}
	if task.Spec.ImagePrePull == nil {
		return status
	}
	seen := map[string]bool{}
	for _, image := range reported.ImageStatus {
		if !seen[image.Image] && slices.Contains(task.Spec.ImagePrePull.Images, image.Image) {
			seen[image.Image] = true
			status.ImageStatus = append(status.ImageStatus, operations.ImageStatus{Image: image.Image, Status: condition(image.Status), Reason: cut(image.Reason)})
		}
	}
	return status
}

// condition returns a status that Kubernetes knows.
func condition(s metav1.ConditionStatus) metav1.ConditionStatus {
	if s == metav1.ConditionTrue || s == metav1.ConditionFalse {
		return s
	}
	return metav1.ConditionUnknown
}

// cut bounds a text, and replaces what no terminal should print.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
	return text
}
