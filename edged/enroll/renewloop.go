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
	k.link, k.nc = link, nc
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
	k.saveKnownTime()
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

// saveKnownTime saves the known time periodically.
func (k *Renewer) saveKnownTime() {
	known := k.clock.knownTime()
	if known.IsZero() || known.Sub(k.floorSavedAt) < floorSaveInterval {
		return
	}
	k.floorSavedAt = known
	if err := k.folder.SaveClockFloor(known); err != nil {
		k.log.Warn("the known time is not written down", zap.Error(err))
	}
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
	if _, doubtful := k.clock.now(); !doubtful {
		return idleInterval
	}
	roots, err := hubca.ReadPool(k.HubCA())
	if err != nil {
		return k.backoff.nextWait() // the leaf logs it
	}
	for _, hub := range k.Hubs() {
		chain, err := hubca.FetchChain(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		if err := k.checkHubTime(chain, roots, hub); err != nil {
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
	home := k.pingCell(ctx) == nil
	if err := k.adoptLinkKey(home); err != nil {
		k.warnOnce("keys not put in order", err)
	}
	if home {
		k.settledSince = state.Since
		k.backoff.reset()
		return 0
	}
	answer, err := k.requestRenewal(ctx, lobbyCell, k.Record().Key)
	switch {
	case err != nil:
		k.warnOnce("the link is up, but no cloudcore answers", err)
	case answer.Reason != "":
		k.metrics.renewals.WithLabelValues("refused").Inc()
		k.setRefused(answer.Reason)
		k.warnOnce("this gateway's key has expired and is not renewed", &RefusedError{Reason: answer.Reason})
	default:
		if err := k.saveAnswer(ctx, answer, k.Record().Key); err != nil {
			k.warnOnce("renewed key not written down", err)
			break
		}
		k.metrics.renewals.WithLabelValues("renewed").Inc()
		k.log.Info("key renewed after it had expired", zap.Time("expires", answer.Expires))
		k.backoff.reset()
		k.mu.Lock()
		k.dials = 0
		k.mu.Unlock()
		k.link.Redial()
		return idleInterval
	}
	return k.backoff.nextWait()
}

// adoptLinkKey makes the key that the hub has accepted the current one.
func (k *Renewer) adoptLinkKey(home bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.folder
	switch k.linkKey {
	case nil, f.Current:
	case f.Old:
		k.log.Warn("the hub knows this gateway's old key only, going back to it and renewing again")
		if err := f.RevertToOld(); err != nil {
			return err
		}
	case f.Next:
		k.log.Warn("the hub knows this gateway's next key only, whose answer was lost: taking it")
		if err := f.AdoptNext(); err != nil {
			return err
		}
	}
	if home {
		k.dials = 0
	}
	return nil
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
	if k.isLinkOutdated() {
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

// isLinkOutdated reports whether the link belongs to another key than the current one: the cloud did not know that key, as
// no cloudcore has run since the link was made. The cloud ends such a link with the next change of keys, and the answer
// with it: it remembers no more than two.
func (k *Renewer) isLinkOutdated() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.linkKey != k.folder.Current
}

// renewKey creates a new key and has it recorded. The link stays; the next one uses the new key.
func (k *Renewer) renewKey(ctx context.Context) error {
	wanted, err := k.makeNextKey()
	if err != nil {
		return err
	}
	failpoint.At("renew.key")
	answer, err := k.requestRenewal(ctx, ownCell, wanted)
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
		_, _ = k.requestRenewal(ctx, ownCell, wanted)
	}
	return nil
}

// makeNextKey returns the public half of the next key; its seed is on disk.
func (k *Renewer) makeNextKey() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.folder.MakeNext(); err != nil {
		return "", err
	}
	return k.folder.Next.Public, nil
}

// saveAnswer saves an answer for a key; the record comes last.
func (k *Renewer) saveAnswer(ctx context.Context, answer identity.Enrolment, public string) error {
	k.validateAnswer(ctx, &answer)
	k.floorSavedAt = time.Time{}
	k.saveKnownTime()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ca := range []struct {
		file, text string
		save       func([]byte) error
	}{
		{k.folder.HubCA(), answer.HubCA, k.folder.SaveHubCA},
		{k.folder.ClusterCA(), answer.ClusterCA, k.folder.SaveClusterCA},
	} {
		if ca.text == "" {
			continue
		}
		if hubca.NewPool([]byte(ca.text)) == nil {
			k.log.Warn("the cloud sent no certificate where there should be one, keeping what is here", zap.String("file", ca.file))
			continue
		}
		if err := ca.save([]byte(ca.text)); err != nil {
			return err
		}
	}
	failpoint.At("enrol.trusted")
	k.refused = ""
	k.metrics.expires.Set(float64(answer.Expires.Unix()))
	return k.folder.SaveRecord(identitydir.Record{
		Node: k.cfg.Node, Key: public, Issued: answer.Now, Expires: answer.Expires, HubURLs: slices.Clone(answer.HubURLs),
	})
}
