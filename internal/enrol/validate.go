package enrol

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
)

// validateAnswer leaves out of an answer what would keep this gateway from the hub as it is now, and else takes the cloud's time: a CA that has
// not signed what the hub shows, and a time at which that is not good. If no hub that is trusted now can be looked at, the answer is
// believed.
func (k *Renewer) validateAnswer(ctx context.Context, answer *identity.Enrolment) {
	before, err := readCertPool(k.HubCA())
	if err != nil {
		k.setCloudTime(answer.Now)
		return
	}
	for _, hub := range k.Hubs() {
		chain, err := fetchChain(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		now, err := verifyChainTime(chain, before, hub, k.Now(), false)
		if err != nil {
			continue // somebody else, in between
		}
		if shown := chain[0]; answer.Now.Before(shown.NotBefore) || answer.Now.After(shown.NotAfter) {
			k.log.Warn("the cloud's time is left aside, as the hub's certificate is not good then", zap.Time("cloud", answer.Now), zap.String("hub", hub))
		} else {
			now = answer.Now
			k.setCloudTime(now)
		}
		if roots := newCertPool([]byte(answer.HubCA)); roots != nil {
			if _, err := verifyChainTime(chain, roots, hub, now, false); err != nil {
				k.log.Warn("the CA that the cloud sent has not signed what the hub shows, keeping the one before", zap.Error(err))
				answer.HubCA = ""
			}
		}
		return
	}
	k.setCloudTime(answer.Now)
}

func (k *Renewer) setCloudTime(now time.Time) {
	k.metrics.clockAhead.Set(k.clock.setCloudTime(now).Seconds())
}
