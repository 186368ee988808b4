package override

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
)

// saver writes what a Keeper has. It belongs to the goroutine of Start.
type saver struct {
	keeper *Keeper
	store  Store
	// unsaved are the devices whose record may differ from what is in force.
	unsaved map[types.NamespacedName]struct{}
}

// serve stores a change and puts it in force then. After an error it is not in force.
func (s *saver) serve(ctx context.Context, r request) error {
	next := r.change(s.keeper.snapshot()[r.id])
	if err := s.save(ctx, r.id, next); err != nil {
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	s.keeper.setEntry(r.id, next)
	return nil
}

// save stores the entry of a device; after an error the record is made again what is in force.
func (s *saver) save(ctx context.Context, id types.NamespacedName, e entry) error {
	var raw []byte
	if len(e.Values) > 0 {
		encoded, err := json.Marshal(e.record)
		if err != nil {
			return fmt.Errorf("encode the overrides of %s: %w", id, err)
		}
		raw = encoded
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := s.store.Save(ctx, map[string][]byte{id.String(): raw}); err != nil {
		s.unsaved[id] = struct{}{}
		return err
	}
	delete(s.unsaved, id)
	return nil
}

// repair stores what is in force of devices whose record is uncertain.
func (s *saver) repair(ctx context.Context) {
	entries := s.keeper.snapshot()
	for id := range maps.Clone(s.unsaved) {
		if err := s.save(ctx, id, entries[id]); err != nil && ctx.Err() == nil {
			s.keeper.log.Warn("values set on the gateway are not stored, trying again", zap.Stringer("device", id), zap.Error(err))
		}
	}
}

// endOverdue ends overrides whose time is over. An end needs no confirmation: a record that stays has its end in it.
func (s *saver) endOverdue(ctx context.Context) {
	now := s.keeper.now()
	for id, e := range s.keeper.snapshot() {
		next := e.clone(e.UID)
		for property, o := range e.Values {
			if over(o.Until, e.deadlines[property], now) {
				delete(next.Values, property)
				delete(next.deadlines, property)
			}
		}
		if len(next.Values) == len(e.Values) {
			continue
		}
		s.keeper.setEntry(id, next)
		s.keeper.log.Info("values set on the gateway have ended", zap.Stringer("device", id))
		if err := s.save(ctx, id, next); err != nil && ctx.Err() == nil {
			s.keeper.log.Warn("the end of values set on the gateway is not stored, trying again", zap.Stringer("device", id), zap.Error(err))
		}
	}
}

// over reports whether an override has ended: by the gateway's clock, or by its deadline, which no clock that is set changes.
func over(until, deadline, now time.Time) bool {
	return !now.Round(0).Before(until) || !now.Before(deadline)
}

// retryInterval is how often an uncertain record is stored again.
const retryInterval = time.Second

// untilNext returns when to look again.
func (s *saver) untilNext() time.Duration {
	next := checkInterval
	if len(s.unsaved) > 0 {
		next = retryInterval
	}
	now := s.keeper.now()
	for _, e := range s.keeper.snapshot() {
		for property, o := range e.Values {
			next = min(next, o.Until.Sub(now.Round(0)), e.deadlines[property].Sub(now))
		}
	}
	return max(next, 0)
}
