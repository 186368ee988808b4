package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// maxUsage is the percentage above which a check item fails, KubeEdge's. maxDiskUsage is for a job that names no items: from there on a kubelet
	// deletes images that no pod uses, and so those that were just pulled.
	maxUsage, maxDiskUsage = 80, 85
	// maxBackoff bounds the delay between two attempts.
	maxBackoff = 30 * time.Second
	// maxReason bounds the bytes of each reason: a report has to fit into one message, and a status of many nodes into one object.
	maxReason = 200
)

// errInterrupted says that the first attempt to pull an image was ended.
var errInterrupted = errors.New("interrupted")

// prePull is a step of an ImagePrePullJob that is being done.
type prePull struct {
	*Executor
	task   *jobs.NodeTask
	spec   *jobs.ImagePrePull
	status jobs.NodeTaskStatus
}

// run does the step and returns its outcome.
func (p *prePull) run(ctx context.Context) jobs.NodeTaskStatus {
	p.status.Phase = operations.NodeInProgress
	p.progress(ctx, 0) // cloudcore waits for the outcome from here on
	if err := p.check(ctx); err != nil {
		return p.fail(operations.ActionCheck, err)
	}
	p.finish(operations.ActionCheck, metav1.ConditionTrue, "")
	timed, cancel := withLinkTimeout(ctx, p.link, time.Duration(p.spec.TimeoutSeconds)*time.Second)
	defer cancel()
	var failed error
	for i, image := range p.spec.Images {
		err := p.pull(timed, image)
		if err != nil {
			err = withCause(timed, err)
		}
		outcome := operations.ImageStatus{Image: image, Status: metav1.ConditionTrue}
		if err != nil {
			outcome.Status, outcome.Reason = metav1.ConditionFalse, reasonOf(err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", image, err))
		}
		p.status.ImageStatus = append(p.status.ImageStatus, outcome)
		p.progress(ctx, i+1)
	}
	if failed != nil {
		return p.fail(operations.ActionPull, failed)
	}
	p.finish(operations.ActionPull, metav1.ConditionTrue, "")
	p.status.Phase, p.status.Reason = operations.NodeSuccessful, ""
	return p.status
}

// check compares what is used of the gateway with the limits.
func (p *prePull) check(ctx context.Context) error {
	items, limit := p.spec.CheckItems, float64(maxUsage)
	if len(items) == 0 {
		items, limit = []operations.CheckItem{operations.CheckDisk}, maxDiskUsage
	}
	for _, item := range items {
		used, err := p.host.Usage(ctx, item)
		if err != nil {
			return fmt.Errorf("%s: %w", item, err)
		}
		if used > limit {
			return fmt.Errorf("%s: %.0f %% are used, at most %.0f %% may be", item, used, limit)
		}
	}
	return nil
}

// pull pulls one image, again after errors as often as the job says. An attempt without a link does not count.
func (p *prePull) pull(ctx context.Context, image string) error {
	last := errInterrupted
	for attempt, backoff := int32(0), p.cfg.RetryBase; ; {
		secret, err := p.secret(ctx)
		if err != nil {
			return err
		}
		if p.images.Has(ctx, image) {
			return nil
		}
		if err = p.images.Pull(ctx, image, secret); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return last
		}
		last = err
		if up, changed := p.link.State(); !up {
			p.log.Debug("image not pulled without a link, waiting for it", zap.String("image", image), zap.Error(err))
			if !waitFor(ctx, changed) {
				return err
			}
			continue
		}
		if attempt++; attempt > p.spec.Retries {
			return err
		}
		p.log.Info("image not pulled, trying again", zap.String("image", image), zap.Error(err))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// withCause returns why an image was not pulled: the time limit, if it has passed, with what was waited for, unless that was the pull itself.
func withCause(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return err
	case errors.Is(err, errInterrupted):
		return cause
	default:
		return fmt.Errorf("%w: %w", cause, err)
	}
}

// waitFor reports whether something has happened before ctx ended.
func waitFor(ctx context.Context, event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	case <-ctx.Done():
		return false
	}
}

// secret returns the pull Secret, and waits until it has arrived; nil if the job has none. It is read for each attempt and kept nowhere.
func (p *prePull) secret(ctx context.Context) (*corev1.Secret, error) {
	if p.spec.Secret == nil {
		return nil, nil //nolint:nilnil // documented
	}
	key := wire.Key{Resource: "secrets", Namespace: p.spec.Secret.Namespace, Name: p.spec.Secret.Name}
	changes, err := p.store.Watch("", "secrets", key.Namespace, p.store.Revision())
	if err != nil {
		return nil, fmt.Errorf("watch secrets: %w", err)
	}
	defer changes.Stop()
	for {
		if entry, err := p.store.Get(key); err == nil {
			secret := &corev1.Secret{}
			if err := json.Unmarshal(entry.Object, secret); err != nil {
				return nil, fmt.Errorf("pull secret %s/%s is unreadable", key.Namespace, key.Name) // the error may have a part of it
			}
			return secret, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pull secret %s/%s has not arrived", key.Namespace, key.Name)
		case _, open := <-changes.Events():
			if !open {
				return nil, fmt.Errorf("watch secrets: %w", changes.Err())
			}
		}
	}
}

// finish records an action.
func (p *prePull) finish(action string, status metav1.ConditionStatus, reason string) {
	p.status.ActionFlow = append(p.status.ActionFlow, operations.ActionStatus{
		Action: action, Status: status, Reason: reason, Time: time.Now().UTC().Format(time.RFC3339),
	})
}

// fail records an action that failed, and the outcome.
func (p *prePull) fail(action string, err error) jobs.NodeTaskStatus {
	p.finish(action, metav1.ConditionFalse, reasonOf(err))
	p.status.Phase, p.status.Reason = operations.NodeFailure, reasonOf(err)
	return p.status
}

// reasonOf returns the text of an error in one line, without its end if it is long.
func reasonOf(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}

// progress reports how far the step is. One that is lost is replaced by the next.
func (p *prePull) progress(ctx context.Context, done int) {
	p.status.Reason = fmt.Sprintf("%d of %d images", done, len(p.spec.Images))
	if err := p.report(ctx, p.task, p.status); err != nil && ctx.Err() == nil {
		p.log.Warn("progress of a task not reported", zap.String("task", p.task.Name), zap.Error(err))
	}
}
