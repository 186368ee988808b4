package enroll

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/leaf"
)

// Start maintains the identity until ctx ends, then returns nil. The leaf is ready, and calls this Renewer for its
// credential, its hubs and the time. With Config.Once it returns the reason why this gateway is refused.
func (k *Renewer) Start(ctx context.Context, link Link) error {
	nc, err := link.Conn("identity")
	if err != nil {
		return err
	}
	defer nc.Close()
	k.link, k.calls = link, &cloudCalls{node: k.cfg.Node, keys: k.keys, link: link, nc: nc}
	for {
		state, changed := link.WatchLink()
		wait, err := k.runStep(ctx, state)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// idleInterval is how often an idle Renewer checks again.
const idleInterval = time.Minute

// runStep performs the next step, and returns the latest time until the next check.
func (k *Renewer) runStep(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	k.trust.saveKnownTime()
	select {
	case <-k.enrolled:
	default:
		return k.joinHub(ctx, state)
	}
	if !state.Up {
		return k.probeHubTime(ctx), nil
	}
	if k.settledSince != state.Since {
		return k.settleLink(ctx, state), nil
	}
	return k.renewIfDue(ctx), nil
}

// warnOnce logs a warning unless it was the last one.
func (k *Renewer) warnOnce(message string, err error) {
	if text := message + err.Error(); text != k.lastWarned {
		k.lastWarned = text
		k.log.Warn(message, zap.Error(err))
	}
}

// probeHubTime derives the least possible time from the hub's certificate, while there is no link and the machine's clock
// is not plausible.
func (k *Renewer) probeHubTime(ctx context.Context) time.Duration {
	if _, doubtful := k.trust.clock.now(); !doubtful {
		return idleInterval
	}
	roots, err := hubca.ReadPool(k.trust.hubCA)
	if err != nil {
		return k.backoff.nextWait() // the leaf logs it
	}
	for _, hub := range k.trust.allHubs() {
		chain, err := hubca.FetchChain(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		if err := k.trust.checkHubTime(chain, roots, hub); err != nil {
			k.warnOnce("the hub cannot be trusted at this time", err)
			continue
		}
		k.link.Redial()
		break
	}
	return k.backoff.nextWait()
}

// settleLink determines, once for each link, where it ends: in the node's own cell, or, for a key that the cloud calls
// expired, in the lobby, where it may be renewed.
func (k *Renewer) settleLink(ctx context.Context, state leaf.LinkState) time.Duration {
	home := k.calls.pingCell(ctx) == nil
	if err := k.keys.adoptLinkKey(home); err != nil {
		k.warnOnce("keys not put in order", err)
	}
	if home {
		k.settledSince = state.Since
		k.backoff.reset()
		return 0
	}
	answer, err := k.calls.requestRenewal(ctx, lobbyCell, k.Record().Key)
	switch {
	case err != nil:
		k.warnOnce("the link is up, but no cloudcore answers", err)
	case answer.Reason != "":
		k.metrics.renewals.WithLabelValues("refused").Inc()
		k.keys.setRefused(answer.Reason)
		k.warnOnce("this gateway's key has expired and is not renewed", &RefusedError{Reason: answer.Reason})
	default:
		if err := k.saveAnswer(ctx, answer, k.Record().Key); err != nil {
			k.warnOnce("renewed key not written down", err)
			break
		}
		k.metrics.renewals.WithLabelValues("renewed").Inc()
		k.log.Info("key renewed after it had expired", zap.Time("expires", answer.Expires))
		k.backoff.reset()
		k.keys.resetDials()
		k.link.Redial()
		return idleInterval
	}
	return k.backoff.nextWait()
}

// renewIfDue replaces the key when most of its life is over.
func (k *Renewer) renewIfDue(ctx context.Context) time.Duration {
	r := k.Record()
	now := k.Now()
	if left := renewAt(r).Sub(now); left > 0 {
		k.renewAfter = time.Time{}
		return min(left, idleInterval)
	}
	if k.renewAfter.IsZero() {
		k.renewAfter = time.Now().Add(time.Duration(rand.Float64() * float64(spreadLimit(r))))
	}
	if left := time.Until(k.renewAfter); left > 0 {
		return left
	}
	if k.keys.isLinkOutdated() {
		k.log.Info("the link is with the key before, dialling again before the next renewal")
		k.link.Redial()
		return k.backoff.nextWait()
	}
	if err := k.renewKey(ctx); err != nil {
		result := "failed"
		if _, refused := errors.AsType[*RefusedError](err); refused {
			result = "refused"
		}
		k.metrics.renewals.WithLabelValues(result).Inc()
		k.warnOnce("key not renewed yet", err)
		return k.backoff.nextWait()
	}
	k.metrics.renewals.WithLabelValues("renewed").Inc()
	k.backoff.reset()
	k.renewAfter = time.Time{}
	return 0
}

// renewKey creates a new key and has it recorded. The link stays; the next one uses the new key.
func (k *Renewer) renewKey(ctx context.Context) error {
	wanted, err := k.keys.makeNextKey()
	if err != nil {
		return err
	}
	failpoint.At("renew.key")
	answer, err := k.calls.requestRenewal(ctx, ownCell, wanted)
	if err != nil {
		return err
	}
	if answer.Reason != "" {
		return &RefusedError{Reason: answer.Reason}
	}
	failpoint.At("renew.answered")
	if err := k.saveAnswer(ctx, answer, wanted); err != nil {
		return err
	}
	k.log.Info("key renewed", zap.String("key", wanted), zap.Time("expires", answer.Expires), zap.Bool("sameLink", answer.Carried))
	if answer.Carried { // the answer has arrived: that ends the previous key. If this fails, the next link does it.
		_, _ = k.calls.requestRenewal(ctx, ownCell, wanted)
	}
	return nil
}

// saveAnswer saves an answer for a key; the record comes last.
func (k *Renewer) saveAnswer(ctx context.Context, answer identity.Enrolment, public string) error {
	k.trust.validateAnswer(ctx, &answer)
	k.trust.floorSavedAt = time.Time{}
	k.trust.saveKnownTime()
	err := k.keys.save(answer, identitydir.Record{
		Node: k.cfg.Node, Key: public, Issued: answer.Now, Expires: answer.Expires, HubURLs: slices.Clone(answer.HubURLs),
	})
	if err == nil {
		k.metrics.expires.Set(float64(answer.Expires.Unix()))
	}
	return err
}

// joinHub creates the key, finds the CA and requests the enrolment.
func (k *Renewer) joinHub(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	if err := k.keys.makeKey(); err != nil {
		return 0, err
	}
	failpoint.At("enrol.key")
	known, err := k.trust.hasPinnedCA()
	if err != nil {
		return 0, err
	}
	if !known {
		if err := k.trust.pinCA(ctx); err != nil {
			k.warnOnce("the hub's CA is not found yet", err)
			return k.backoff.nextWait(), k.finalError(isFinal(err), err)
		}
		failpoint.At("enrol.pinned")
		k.backoff.reset()
		k.log.Info("the hub's CA has the hash that was given")
		k.link.Redial()
	}
	if !state.Up {
		return k.explainNoLink(ctx)
	}
	answer, err := k.calls.requestEnrolment(ctx)
	if err != nil {
		k.warnOnce("no answer to the enrolment yet", err)
		return k.backoff.nextWait(), nil
	}
	if answer.Reason != "" {
		err := &RefusedError{Reason: answer.Reason}
		k.warnOnce("the cloud does not take this gateway", err)
		return k.backoff.nextWait(), k.finalError(true, err)
	}
	failpoint.At("enrol.answered")
	if err := k.saveAnswer(ctx, answer, k.keys.current().Public); err != nil {
		return 0, err
	}
	k.backoff.reset()
	k.log.Info("enrolled", zap.String("node", k.cfg.Node), zap.String("key", k.keys.current().Public), zap.Time("expires", answer.Expires))
	close(k.enrolled)
	k.link.Redial()
	return idleInterval, nil
}

func (k *Renewer) finalError(final bool, err error) error {
	if final && k.cfg.Once {
		return err
	}
	return nil
}

// minRefusedDials is the number of refused connections after which a gateway with a token accepts the refusal: a cloudcore
// may not know a new token for a moment, or no cloudcore may be running.
const minRefusedDials = 3

// explainNoLink logs why there is no link for the request.
func (k *Renewer) explainNoLink(ctx context.Context) (time.Duration, error) {
	dials := k.keys.dialCount()
	err := k.link.Problem()
	switch {
	case errors.Is(err, leaf.ErrRefused):
		if dials < minRefusedDials {
			return retryMin, nil
		}
		err = &RefusedError{Reason: "its token is unknown, expired, used up or for another node, or a node of this name joined with another key, " +
			"or no cloudcore is there to judge. Make another token with frond token create --node " + k.cfg.Node}
		k.warnOnce("the hub does not let this gateway in", err)
		return k.backoff.nextWait(), k.finalError(true, err)
	case err != nil:
		k.warnOnce("no link to the hub yet", err)
	}
	return min(k.probeHubTime(ctx), retryMin), nil
}
