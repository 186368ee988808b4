package enrol

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/internal/crash"
	"github.com/frond-edge/frond/leaf"
)

// join makes the key, finds the CA and asks to be recorded.
func (k *Keeper) join(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	if err := k.makeKey(); err != nil {
		return 0, err
	}
	crash.At("enrol.key")
	known, err := k.trusts()
	if err != nil {
		return 0, err
	}
	if !known {
		if err := k.pin(ctx); err != nil {
			k.say("the hub's CA is not found yet", err)
			return k.tries.wait(), k.once(isFinal(err), err)
		}
		crash.At("enrol.pinned")
		k.tries.reset()
		k.log.Info("the hub's CA has the hash that was given")
		k.link.Redial()
	}
	if !state.Up {
		return k.outside(ctx)
	}
	answer, err := k.enrol(ctx)
	if err != nil {
		k.say("no answer to the enrolment yet", err)
		return k.tries.wait(), nil
	}
	if answer.Reason != "" {
		err := &RefusedError{Reason: answer.Reason}
		k.say("the cloud does not take this gateway", err)
		return k.tries.wait(), k.once(true, err)
	}
	crash.At("enrol.answered")
	if err := k.accept(ctx, answer, k.folder.current.public); err != nil {
		return 0, err
	}
	k.tries.reset()
	k.log.Info("enrolled", zap.String("node", k.cfg.Node), zap.String("key", k.folder.current.public), zap.Time("expires", answer.Expires))
	close(k.enrolled)
	k.link.Redial()
	return idle, nil
}

func (k *Keeper) once(final bool, err error) error {
	if final && k.cfg.Once {
		return err
	}
	return nil
}

func (k *Keeper) makeKey() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.folder.current != nil {
		return nil
	}
	made, err := k.folder.fresh(seedFile)
	if err != nil {
		return err
	}
	k.folder.current = made
	return nil
}

// trusts tells whether the CA of an earlier try is here, and is one that is meant.
func (k *Keeper) trusts() (bool, error) {
	data, err := os.ReadFile(k.HubCA())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the hub's CA: %w", err)
	}
	certs, err := parse(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.HubCA(), err)
	}
	_, err = pinned(certs, "the hub of an earlier try", k.cfg.CAHashes)
	return err == nil, nil
}

// pin finds the CA among what the hubs show, and writes it down.
func (k *Keeper) pin(ctx context.Context) error {
	if err := os.Remove(k.HubCA()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the CA of an earlier try: %w", err)
	}
	var faults []error
	for _, hub := range k.Hubs() {
		chain, err := look(ctx, hub, k.cfg.Proxy)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		ca, err := pinned(chain, hub, k.cfg.CAHashes)
		if err != nil {
			return err
		}
		if err := k.judge(chain, pool(encode(ca)), hub); err != nil {
			return err
		}
		return k.folder.write(hubCAFile, encode(ca))
	}
	return errors.Join(faults...)
}

// judge sees whether a hub's chain is good by what is known of the time, and learns from it how late it is at least.
func (k *Keeper) judge(chain []*x509.Certificate, roots *x509.CertPool, hub string) error {
	now, doubtful := k.clock.now()
	at, err := timeFor(chain, roots, hub, now, doubtful)
	if err != nil {
		return err
	}
	if at.After(now) {
		k.log.Warn("the clock is behind the hub's certificate, whose time is taken instead",
			zap.Time("clock", k.clock.machine()), zap.Time("taken", at))
		k.clock.atLeast(chain[0].NotBefore)
		k.clock.assume(at)
	}
	return nil
}

// refusals is after how many connections that were refused a gateway with a token believes it: a cloudcore may not know a new token
// for a moment, or there may be none to judge.
const refusals = 3

// outside says why there is no link to ask over.
func (k *Keeper) outside(ctx context.Context) (time.Duration, error) {
	k.mu.Lock()
	dials := k.dials
	k.mu.Unlock()
	err := k.link.Problem()
	switch {
	case errors.Is(err, leaf.ErrRefused):
		if dials < refusals {
			return retryFirst, nil
		}
		err = &RefusedError{Reason: "its token is unknown, expired, used up or for another node, or a node of this name joined with another key, " +
			"or no cloudcore is there to judge. Make another token with frond token create --node " + k.cfg.Node}
		k.say("the hub does not let this gateway in", err)
		return k.tries.wait(), k.once(true, err)
	case err != nil:
		k.say("no link to the hub yet", err)
	}
	return min(k.away(ctx), retryFirst), nil
}
