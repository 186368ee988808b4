package enroll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/leaf"
)

// joinHub creates the key, finds the CA and requests the enrolment.
func (k *Renewer) joinHub(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	if err := k.makeKey(); err != nil {
		return 0, err
	}
	failpoint.At("enrol.key")
	known, err := k.hasPinnedCA()
	if err != nil {
		return 0, err
	}
	if !known {
		if err := k.pinCA(ctx); err != nil {
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
	answer, err := k.requestEnrolment(ctx)
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
	if err := k.saveAnswer(ctx, answer, k.folder.Current.Public); err != nil {
		return 0, err
	}
	k.backoff.reset()
	k.log.Info("enrolled", zap.String("node", k.cfg.Node), zap.String("key", k.folder.Current.Public), zap.Time("expires", answer.Expires))
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

func (k *Renewer) makeKey() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.folder.MakeCurrent()
}

// hasPinnedCA reports whether the CA of an earlier attempt is stored and matches a configured hash.
func (k *Renewer) hasPinnedCA() (bool, error) {
	data, err := os.ReadFile(k.HubCA())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the hub's CA: %w", err)
	}
	certs, err := hubca.ParseCerts(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.HubCA(), err)
	}
	_, err = hubca.FindPinned(certs, "the hub of an earlier try", k.cfg.CAHashes)
	return err == nil, nil
}

// pinCA finds the CA in the hubs' certificate chains, and stores it.
func (k *Renewer) pinCA(ctx context.Context) error {
	if err := os.Remove(k.HubCA()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the CA of an earlier try: %w", err)
	}
	var faults []error
	for _, hub := range k.Hubs() {
		chain, err := hubca.FetchChain(ctx, hub, k.cfg.Proxy)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		ca, err := hubca.FindPinned(chain, hub, k.cfg.CAHashes)
		if err != nil {
			return err
		}
		if err := k.checkHubTime(chain, hubca.NewPool(hubca.EncodeCert(ca)), hub); err != nil {
			return err
		}
		return k.folder.SaveHubCA(hubca.EncodeCert(ca))
	}
	return errors.Join(faults...)
}

// checkHubTime checks whether a hub's chain is valid at the known time, and derives the least possible time from it.
func (k *Renewer) checkHubTime(chain []*x509.Certificate, roots *x509.CertPool, hub string) error {
	now, doubtful := k.clock.now()
	at, err := hubca.VerifyAt(chain, roots, hub, now, doubtful)
	if err != nil {
		return err
	}
	if at.After(now) {
		k.log.Warn("the clock is behind the hub's certificate, whose time is taken instead",
			zap.Time("clock", k.clock.wallTime()), zap.Time("taken", at))
		k.clock.raiseFloor(chain[0].NotBefore)
		k.clock.assumeTime(at)
	}
	return nil
}

// minRefusedDials is the number of refused connections after which a gateway with a token accepts the refusal: a cloudcore
// may not know a new token for a moment, or no cloudcore may be running.
const minRefusedDials = 3

// explainNoLink logs why there is no link for the request.
func (k *Renewer) explainNoLink(ctx context.Context) (time.Duration, error) {
	k.mu.Lock()
	dials := k.dials
	k.mu.Unlock()
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
