package rules

import (
	"context"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

// feedProblem returns why the hub gives no messages, nil if it does, and for how long its answer is still worth waiting for.
func feedProblem(s feedState) (problem *resolve.Problem, wait time.Duration) {
	switch {
	case !s.begun.IsZero():
		if wait = requestTimeout - time.Since(s.begun); wait > 0 {
			return nil, wait
		}
		return &resolve.Problem{Reason: reasonFeedNotMade, Message: "The hub has not answered: no messages come until it does."}, 0
	case s.err != nil:
		return &resolve.Problem{Reason: reasonFeedNotMade, Message: truncate("The hub gives no messages: " + s.err.Error())}, 0
	}
	return nil, 0
}

// readyOf returns the condition Ready.
func readyOf(generation int64, problem *resolve.Problem) metav1.Condition {
	if problem != nil {
		return metav1.Condition{Type: rules.ConditionReady, Status: metav1.ConditionFalse, Reason: problem.Reason, Message: problem.Message, ObservedGeneration: generation}
	}
	return metav1.Condition{
		Type: rules.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonPassing, Message: "Messages are passed on.", ObservedGeneration: generation,
	}
}

// updateStatus writes the status if it changed and the last write is long enough ago, and comes back while messages wait.
func (c *Controller) updateStatus(ctx context.Context, rule *rules.Rule, one *run, resolved resolve.Resolution, problem *resolve.Problem) error {
	key := keyOf(rule)
	c.mu.Lock()
	since := time.Since(c.written[key])
	c.mu.Unlock()
	period := statusPeriod(c.runs.count())
	if since < period {
		c.queue.AddAfter(key, period-since)
		return nil
	}
	if problem == nil {
		var wait time.Duration
		if problem, wait = feedProblem(one.progress.feedState()); wait > 0 {
			c.queue.AddAfter(key, wait)
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	waiting := c.waiting(ctx, rule, problem == nil && resolved.Call == (resolve.Call{}))
	if waiting > 0 {
		c.queue.AddAfter(key, period)
	}
	unwritten, current := one.progress.snapshot()
	next := nextStatus(rule, unwritten, current, waiting, readyOf(rule.Generation, problem))
	if apiequality.Semantic.DeepEqual(rule.Status, next) {
		return nil
	}
	updated := rule.DeepCopy()
	updated.Status = next
	err := putStatus(ctx, c.client, updated)
	switch {
	case apierrors.IsConflict(err):
		c.queue.AddAfter(key, unreadRetry) // the cache has the other write by then
		return nil
	case apierrors.IsNotFound(err):
		// The rule is gone, or its definition is KubeEdge's, which has no status of its own: the messages are passed on all the same.
		c.log.Warn("status of a rule not written: if the rule exists, apply deploy/crd", zap.Stringer("rule", key), zap.Error(err))
	case err != nil:
		return err
	default:
		one.progress.markWritten(unwritten)
		c.warnOf(rule, next)
	}
	c.mu.Lock()
	c.written[key] = time.Now()
	c.mu.Unlock()
	return nil
}

// statusPeriod is the least time between two writes of a rule's status by a replica with so many rules.
func statusPeriod(owned int) time.Duration {
	return max(StatusPeriod, time.Duration(owned)*time.Second/statusesPerSecond)
}

// waiting returns how many messages of a rule wait. Where they are not asked for, or the hub is away, it is the last number known, so that the status can be
// written all the same.
func (c *Controller) waiting(ctx context.Context, rule *rules.Rule, ask bool) int64 {
	n := rule.Status.WaitingMessages
	if ask {
		ctx, cancel := context.WithTimeout(ctx, waitingTimeout)
		defer cancel()
		if asked, err := c.feeds.Waiting(ctx, string(rule.UID)); err != nil {
			c.log.Warn("number of a rule's waiting messages not known", zap.Stringer("rule", keyOf(rule)), zap.Error(err))
		} else {
			n = asked
		}
	}
	c.metrics.waiting.WithLabelValues(rule.Namespace, rule.Name).Set(float64(n))
	return n
}

// warnOf raises an Event where a rule stops passing messages on, and where messages were given up.
func (c *Controller) warnOf(rule *rules.Rule, next rules.RuleStatus) {
	about := corev1.ObjectReference{
		APIVersion: rules.GroupVersion().String(), Kind: rules.RuleKind, Namespace: rule.Namespace, Name: rule.Name, UID: rule.UID,
	}
	is, was := meta.FindStatusCondition(next.Conditions, rules.ConditionReady), meta.FindStatusCondition(rule.Status.Conditions, rules.ConditionReady)
	if is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason) {
		c.warn(about, is.Reason, is.Message)
	}
	if next.FailMessages > rule.Status.FailMessages && len(next.Errors) > 0 {
		c.warn(about, "MessagesGivenUp", "Messages were given up and are in the stream DEAD; the last error: "+next.Errors[len(next.Errors)-1])
	}
}
