package enroll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
)

// hubTrust decides which hubs are trusted, and what time it is. Only now and allHubs may be called concurrently.
type hubTrust struct {
	keys *keyring
	// hubs are the hub's leaf listeners of the configuration, hashes those of its CA, and hubCA is the file of the CA.
	hubs, hashes []string
	hubCA        string
	proxy        func(hub *url.URL) (*url.URL, error)
	clock        *trustedClock
	metrics      *renewerMetrics
	log          *zap.Logger
	floorSavedAt time.Time // when the known time was last saved
}

// now returns the cloud's time, as far as it is known.
func (t *hubTrust) now() time.Time {
	now, _ := t.clock.now()
	return now
}

// allHubs lists the hub's leaf listeners: those that the cloud named, then those of the configuration. A wrong answer of the
// cloud must not keep a gateway out.
func (t *hubTrust) allHubs() []string {
	var all []string
	for _, hub := range slices.Concat(t.keys.record().HubURLs, t.hubs) {
		if !slices.Contains(all, hub) {
			all = append(all, hub)
		}
	}
	return all
}

// hasPinnedCA reports whether the CA of an earlier attempt is stored and matches a configured hash.
func (t *hubTrust) hasPinnedCA() (bool, error) {
	data, err := os.ReadFile(t.hubCA)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the hub's CA: %w", err)
	}
	certs, err := hubca.ParseCerts(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", t.hubCA, err)
	}
	_, err = hubca.FindPinned(certs, "the hub of an earlier try", t.hashes)
	return err == nil, nil
}

// pinCA finds the CA in the hubs' certificate chains, and stores it.
func (t *hubTrust) pinCA(ctx context.Context) error {
	if err := os.Remove(t.hubCA); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the CA of an earlier try: %w", err)
	}
	var faults []error
	for _, hub := range t.allHubs() {
		chain, err := hubca.FetchChain(ctx, hub, t.proxy)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		ca, err := hubca.FindPinned(chain, hub, t.hashes)
		if err != nil {
			return err
		}
		if err := t.checkHubTime(chain, hubca.NewPool(hubca.EncodeCert(ca)), hub); err != nil {
			return err
		}
		return t.keys.folder.SaveHubCA(hubca.EncodeCert(ca))
	}
	return errors.Join(faults...)
}

// checkHubTime checks whether a hub's chain is valid at the known time, and derives the least possible time from it.
func (t *hubTrust) checkHubTime(chain []*x509.Certificate, roots *x509.CertPool, hub string) error {
	now, doubtful := t.clock.now()
	at, err := hubca.VerifyAt(chain, roots, hub, now, doubtful)
	if err != nil {
		return err
	}
	if at.After(now) {
		t.log.Warn("the clock is behind the hub's certificate, whose time is taken instead",
			zap.Time("clock", t.clock.wallTime()), zap.Time("taken", at))
		t.clock.raiseFloor(chain[0].NotBefore)
		t.clock.assumeTime(at)
	}
	return nil
}

// validateAnswer removes parts of an answer that would lock this gateway out of the hub as it is now, and otherwise sets
// the cloud's time. It removes a CA that has not signed the hub's certificate, and a time at which that certificate is not
// valid. If no trusted hub can be reached, the answer is accepted.
func (t *hubTrust) validateAnswer(ctx context.Context, answer *identity.Enrolment) {
	before, err := hubca.ReadPool(t.hubCA)
	if err != nil {
		t.setCloudTime(answer.Now)
		return
	}
	for _, hub := range t.allHubs() {
		chain, err := hubca.FetchChain(ctx, hub, t.proxy)
		if err != nil {
			continue
		}
		now, err := hubca.VerifyAt(chain, before, hub, t.now(), false)
		if err != nil {
			continue // another server, in between
		}
		if shown := chain[0]; answer.Now.Before(shown.NotBefore) || answer.Now.After(shown.NotAfter) {
			t.log.Warn("the cloud's time is left aside, as the hub's certificate is not good then", zap.Time("cloud", answer.Now), zap.String("hub", hub))
		} else {
			now = answer.Now
			t.setCloudTime(now)
		}
		if roots := hubca.NewPool([]byte(answer.HubCA)); roots != nil {
			if _, err := hubca.VerifyAt(chain, roots, hub, now, false); err != nil {
				t.log.Warn("the CA that the cloud sent has not signed what the hub shows, keeping the one before", zap.Error(err))
				answer.HubCA = ""
			}
		}
		return
	}
	t.setCloudTime(answer.Now)
}

func (t *hubTrust) setCloudTime(now time.Time) {
	t.metrics.clockAhead.Set(t.clock.setCloudTime(now).Seconds())
}

// saveKnownTime saves the known time periodically.
func (t *hubTrust) saveKnownTime() {
	known := t.clock.knownTime()
	if known.IsZero() || known.Sub(t.floorSavedAt) < floorSaveInterval {
		return
	}
	t.floorSavedAt = known
	if err := t.keys.folder.SaveClockFloor(known); err != nil {
		t.log.Warn("the known time is not written down", zap.Error(err))
	}
}
