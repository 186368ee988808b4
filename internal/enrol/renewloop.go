package enrol

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/crash"
	"github.com/frond-edge/frond/leaf"
)

// Start keeps the identity until ctx ends, then returns nil. The leaf is ready, and asks this keeper for its credential, its
// hubs and the time. With Config.Once it returns why this gateway is not let in.
func (k *Keeper) Start(ctx context.Context, link Link) error {
	nc, err := link.Conn("identity")
	if err != nil {
		return err
	}
	defer nc.Close()
	k.link, k.nc = link, nc
	for {
		state, changed := link.WatchLink()
		wait, err := k.step(ctx, state)
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

// idle is how often a keeper with nothing to do looks again.
const idle = time.Minute

// step does what is to be done now, and returns when to look again at the latest.
func (k *Keeper) step(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	k.remember()
	select {
	case <-k.enrolled:
	default:
		return k.join(ctx, state)
	}
	if !state.Up {
		return k.away(ctx), nil
	}
	if k.settled != state.Since {
		return k.settle(ctx, state), nil
	}
	return k.renewInTime(ctx), nil
}

// remember writes down now and then how late it is.
func (k *Keeper) remember() {
	known := k.clock.known()
	if known.IsZero() || known.Sub(k.floored) < floorEvery {
		return
	}
	k.floored = known
	if err := k.folder.writeJSON(clockFile, map[string]time.Time{"floor": known}); err != nil {
		k.log.Warn("the known time is not written down", zap.Error(err))
	}
}

// say tells a person once.
func (k *Keeper) say(message string, err error) {
	if text := message + err.Error(); text != k.said {
		k.said = text
		k.log.Warn(message, zap.Error(err))
	}
}

// away looks, while there is no link and the machine's clock is not plausible, what time the hub's certificate needs.
func (k *Keeper) away(ctx context.Context) time.Duration {
	if _, doubtful := k.clock.now(); !doubtful {
		return idle
	}
	roots, err := readPool(k.HubCA())
	if err != nil {
		return k.tries.wait() // the leaf says so
	}
	for _, hub := range k.Hubs() {
		chain, err := look(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		if err := k.judge(chain, roots, hub); err != nil {
			k.say("the hub cannot be trusted at this time", err)
			continue
		}
		k.link.Redial()
		break
	}
	return k.tries.wait()
}

// settle finds out, once for each link, where it leads: to the node's own cell, or, for a key that the cloud calls expired,
// to the lobby, where it may be renewed.
func (k *Keeper) settle(ctx context.Context, state leaf.LinkState) time.Duration {
	home := k.ping(ctx) == nil
	if err := k.adopt(home); err != nil {
		k.say("keys not put in order", err)
	}
	if home {
		k.settled = state.Since
		k.tries.reset()
		return 0
	}
	answer, err := k.renewAs(ctx, lobby, k.Record().Key)
	switch {
	case err != nil:
		k.say("the link is up, but no cloudcore answers", err)
	case answer.Reason != "":
		k.metrics.renewals.WithLabelValues("refused").Inc()
		k.refuse(answer.Reason)
		k.say("this gateway's key has expired and is not renewed", &RefusedError{Reason: answer.Reason})
	default:
		if err := k.accept(ctx, answer, k.Record().Key); err != nil {
			k.say("renewed key not written down", err)
			break
		}
		k.metrics.renewals.WithLabelValues("renewed").Inc()
		k.log.Info("key renewed after it had expired", zap.Time("expires", answer.Expires))
		k.tries.reset()
		k.mu.Lock()
		k.dials = 0
		k.mu.Unlock()
		k.link.Redial()
		return idle
	}
	return k.tries.wait()
}

// adopt makes the key that the hub has let in the current one.
func (k *Keeper) adopt(home bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.folder
	switch k.shown {
	case nil, f.current:
	case f.old:
		k.log.Warn("the hub knows this gateway's old key only, going back to it and renewing again")
		if err := f.revert(); err != nil {
			return err
		}
	case f.next:
		k.log.Warn("the hub knows this gateway's next key only, whose answer was lost: taking it")
		if err := f.advance(); err != nil {
			return err
		}
	}
	if home {
		k.dials = 0
	}
	return nil
}

// renewInTime changes the key when most of its life is over.
func (k *Keeper) renewInTime(ctx context.Context) time.Duration {
	r := k.Record()
	now := k.Now()
	if left := renewAt(r).Sub(now); left > 0 {
		k.after = time.Time{}
		return min(left, idle)
	}
	if k.after.IsZero() {
		k.after = time.Now().Add(time.Duration(rand.Float64() * float64(spread(r))))
	}
	if left := time.Until(k.after); left > 0 {
		return left
	}
	if k.outdated() {
		k.log.Info("the link is with the key before, dialling again before the next renewal")
		k.link.Redial()
		return k.tries.wait()
	}
	if err := k.renew(ctx); err != nil {
		result := "failed"
		if _, refused := errors.AsType[*RefusedError](err); refused {
			result = "refused"
		}
		k.metrics.renewals.WithLabelValues(result).Inc()
		k.say("key not renewed yet", err)
		return k.tries.wait()
	}
	k.metrics.renewals.WithLabelValues("renewed").Inc()
	k.tries.reset()
	k.after = time.Time{}
	return 0
}

// outdated tells whether the link stands for another key than the current one: the cloud did not know it, as all cloudcores had been
// away since it was made. The cloud ends such a link with the next change of
// keys, and the answer with it: it knows no more than two.
func (k *Keeper) outdated() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shown != k.folder.current
}

// renew makes a new key and has it recorded. The link stays; the next one is with the new key.
func (k *Keeper) renew(ctx context.Context) error {
	wanted, err := k.makeNext()
	if err != nil {
		return err
	}
	crash.At("renew.key")
	answer, err := k.renewAs(ctx, own, wanted)
	if err != nil {
		return err
	}
	if answer.Reason != "" {
		return &RefusedError{Reason: answer.Reason}
	}
	crash.At("renew.answered")
	if err := k.accept(ctx, answer, wanted); err != nil {
		return err
	}
	k.log.Info("key renewed", zap.String("key", wanted), zap.Time("expires", answer.Expires), zap.Bool("sameLink", answer.Carried))
	if answer.Carried { // the answer has come: that ends the time of the key before. Where this fails, the next link does it.
		_, _ = k.renewAs(ctx, own, wanted)
	}
	return nil
}

// makeNext returns the key that this gateway wants to be; its seed is on disk.
func (k *Keeper) makeNext() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.folder.next == nil {
		made, err := k.folder.fresh(nextFile)
		if err != nil {
			return "", err
		}
		k.folder.next = made
	}
	return k.folder.next.public, nil
}

// accept writes down an answer for a key; the record comes last.
func (k *Keeper) accept(ctx context.Context, answer identity.Enrolment, public string) error {
	k.sift(ctx, &answer)
	k.floored = time.Time{}
	k.remember()
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, text := range map[string]string{hubCAFile: answer.HubCA, clusterCAFile: answer.ClusterCA} {
		if text == "" {
			continue
		}
		if pool([]byte(text)) == nil {
			k.log.Warn("the cloud sent no certificate where there should be one, keeping what is here", zap.String("file", name))
			continue
		}
		if err := k.folder.write(name, []byte(text)); err != nil {
			return err
		}
	}
	crash.At("enrol.trusted")
	k.refused = ""
	k.metrics.expires.Set(float64(answer.Expires.Unix()))
	return k.folder.keep(Record{
		Node: k.cfg.Node, Key: public, Issued: answer.Now, Expires: answer.Expires, HubURLs: slices.Clone(answer.HubURLs),
	})
}
