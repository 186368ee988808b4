package enroll

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
)

// validateAnswer removes parts of an answer that would lock this gateway out of the hub as it is now, and otherwise sets
// the cloud's time. It removes a CA that has not signed the hub's certificate, and a time at which that certificate is not
// valid. If no trusted hub can be reached, the answer is accepted.
func (k *Renewer) validateAnswer(ctx context.Context, answer *identity.Enrolment) {
	before, err := hubca.ReadPool(k.HubCA())
	if err != nil {
		k.setCloudTime(answer.Now)
		return
	}
	for _, hub := range k.Hubs() {
		chain, err := hubca.FetchChain(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		now, err := hubca.VerifyAt(chain, before, hub, k.Now(), false)
		if err != nil {
			continue // another server, in between
		}
		if shown := chain[0]; answer.Now.Before(shown.NotBefore) || answer.Now.After(shown.NotAfter) {
			k.log.Warn("the cloud's time is left aside, as the hub's certificate is not good then", zap.Time("cloud", answer.Now), zap.String("hub", hub))
		} else {
			now = answer.Now
			k.setCloudTime(now)
		}
		if roots := hubca.NewPool([]byte(answer.HubCA)); roots != nil {
			if _, err := hubca.VerifyAt(chain, roots, hub, now, false); err != nil {
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
