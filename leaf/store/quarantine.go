package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// carryQuarantine returns the records in quarantine for the bucket that replaces this one, each for the rest of its time.
// Unreadable records are dropped: they serve only to investigate a fault.
func (s *Store) carryQuarantine(ctx context.Context) []change {
	list, err := s.listQuarantine(ctx)
	if err != nil {
		s.log.Warn("records in quarantine are lost with the bucket that is created again", zap.Error(err))
		return nil
	}
	changes := make([]change, 0, len(list))
	for _, old := range list {
		m, err := s.rewriteQuarantined(old)
		if err != nil {
			s.log.Warn("a record in quarantine is lost with the bucket that is created again", zap.String("subject", old.Subject), zap.Error(err))
			continue
		}
		if m != nil {
			changes = append(changes, change{raw: m})
		}
	}
	return changes
}

// listQuarantine reads the records in quarantine one by one: the server may be unable to read a record between them.
func (s *Store) listQuarantine(ctx context.Context) ([]*jetstream.RawStreamMsg, error) {
	stream, err := s.js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("look up bucket: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(quarantinePrefix+">"))
	if err != nil {
		return nil, fmt.Errorf("list quarantine: %w", err)
	}
	var list []*jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			s.log.Warn("a record in quarantine cannot be read", zap.String("subject", subject), zap.Error(err))
			continue
		}
		list = append(list, m)
	}
	return list, nil
}

// rewriteQuarantined returns the message that writes a quarantined record again. It is sealed if it dates from before there
// was a key, and nil after its time.
func (s *Store) rewriteQuarantined(old *jetstream.RawStreamMsg) (*nats.Msg, error) {
	left := quarantineTTL
	if ttl, err := time.ParseDuration(old.Header.Get(headerTTL)); err == nil {
		left = min(ttl, left)
	}
	left -= max(0, time.Since(old.Time)).Truncate(time.Second) // the clock may have gone back
	if left < time.Second {
		return nil, nil
	}
	m := nats.NewMsg(old.Subject)
	m.Data = old.Data
	for _, h := range []string{headerSubject, headerReason, headerSealed} {
		setHeader(m, h, old.Header.Get(h))
	}
	setHeader(m, headerTTL, left.String())
	key, err := wire.ParseKey(strings.TrimPrefix(old.Header.Get(headerSubject), objectPrefix))
	if err == nil && m.Header.Get(headerSealed) == "" && s.isSecret(key) {
		sealed, err := s.cfg.Sealer.Seal(m.Subject, old.Data)
		if err != nil {
			return nil, fmt.Errorf("seal: %w", err)
		}
		m.Data = sealed
		setHeader(m, headerSealed, sealedValue)
	}
	return m, nil
}
