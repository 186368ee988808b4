package demand

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/store"
)

// serviceDemand says whether the cloud may send Services and EndpointSlices by need: whether Wanted contains what this gateway's
// programs follow of them. A gateway whose store was filled by a version that did not count it tells the cloud so only after its
// programs had the grace period to come back. A new store has nothing to lose.
type serviceDemand struct {
	byNeed, recorded bool
	began            time.Time
}

func newServiceDemand(st *store.Store) serviceDemand {
	_, err := st.Get(serviceDemandKey())
	return serviceDemand{byNeed: err == nil || st.Cursor().StreamEpoch == "", recorded: err == nil, began: time.Now()}
}

// serviceDemandKey is the key of the record that byNeed was true. A restart does not repeat the grace period.
func serviceDemandKey() wire.Key {
	return wire.Key{Group: records.Group, Resource: "asks", Name: "services"}
}

// advance sets byNeed after the grace period, and returns whether it did, and the time until then.
func (d *serviceDemand) advance(grace time.Duration) (begun bool, left time.Duration) {
	if d.byNeed {
		return false, 0
	}
	if left = grace - time.Since(d.began); left > 0 {
		return false, left
	}
	d.byNeed = true
	return true, 0
}

// ServicesByNeed reports whether Wanted contains the scopes on Services and EndpointSlices that programs follow. The channel of
// Wanted is closed when it changes.
func (s *Tracker) ServicesByNeed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.services.byNeed
}

// saveServicesByNeed stores that the cloud may send Services by need. If the write fails, it is repeated.
func (s *Tracker) saveServicesByNeed(ctx context.Context) {
	s.mu.Lock()
	due := s.services.byNeed && !s.services.recorded
	s.mu.Unlock()
	if !due {
		return
	}
	if _, err := s.store.Put(ctx, serviceDemandKey(), []byte(`{"metadata":{"name":"services"}}`), nil); err != nil {
		s.log.Warn("that Services are asked for by need is not kept over a restart", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services.recorded = true
}
