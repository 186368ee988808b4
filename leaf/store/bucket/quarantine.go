package bucket

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// quarantineTTL is how long bad bytes are kept for inspection.
const quarantineTTL = 7 * 24 * time.Hour

// Quarantine returns the change that keeps a bad record for inspection. The bytes of a secret that came as plain text are sealed.
func (b *Bucket) Quarantine(bad BadRecord) (record.Change, error) {
	m := nats.NewMsg(quarantinePrefix + strconv.FormatUint(bad.Revision, 10))
	m.Data = bad.Data
	setHeader(m, headerSubject, bad.Subject)
	setHeader(m, headerReason, bad.Reason.Error())
	setHeader(m, headerTTL, quarantineTTL.String())
	if sealed := bad.Header.Get(headerSealed); sealed != "" {
		setHeader(m, headerSealed, sealed)
		return record.Change{Raw: m}, nil
	}
	if err := b.sealQuarantined(m); err != nil {
		return record.Change{}, err
	}
	return record.Change{Raw: m}, nil
}

// sealQuarantined seals the bytes of a secret that are kept as plain text.
func (b *Bucket) sealQuarantined(m *nats.Msg) error {
	key, err := wire.ParseKey(strings.TrimPrefix(m.Header.Get(headerSubject), objectPrefix))
	if err == nil && m.Header.Get(headerSealed) == "" && b.cfg.Sealing.IsSecret(key) {
		sealed, err := b.cfg.Sealing.Sealer.Seal(m.Subject, m.Data)
		if err != nil {
			return fmt.Errorf("seal %s: %w", m.Subject, err)
		}
		m.Data = sealed
		setHeader(m, headerSealed, sealedValue)
	}
	return nil
}

// Void returns the change that frees the place of a bad record.
func Void(bad BadRecord) record.Change {
	m := nats.NewMsg(bad.Subject)
	setHeader(m, headerState, stateVoid)
	setHeader(m, headerKV, kvDelete)
	setHeader(m, headerTTL, voidTTL.String())
	return record.Change{Raw: m}
}

// CarryQuarantine returns the records in quarantine for the bucket that replaces this one, each for the rest of its time.
// Unreadable records are dropped: they serve only to investigate a fault.
func (b *Bucket) CarryQuarantine(ctx context.Context) []record.Change {
	list, err := b.listQuarantine(ctx)
	if err != nil {
		b.log.Warn("records in quarantine are lost with the bucket that is created again", zap.Error(err))
		return nil
	}
	changes := make([]record.Change, 0, len(list))
	for _, old := range list {
		m, err := b.rewriteQuarantined(old)
		if err != nil {
			b.log.Warn("a record in quarantine is lost with the bucket that is created again", zap.String("subject", old.Subject), zap.Error(err))
			continue
		}
		if m != nil {
			changes = append(changes, record.Change{Raw: m})
		}
	}
	return changes
}

// listQuarantine reads the records in quarantine one by one: the server may be unable to read a record between them.
func (b *Bucket) listQuarantine(ctx context.Context) ([]*jetstream.RawStreamMsg, error) {
	stream, err := b.Lookup(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(quarantinePrefix+">"))
	if err != nil {
		return nil, fmt.Errorf("list quarantine: %w", err)
	}
	var list []*jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			b.log.Warn("a record in quarantine cannot be read", zap.String("subject", subject), zap.Error(err))
			continue
		}
		list = append(list, m)
	}
	return list, nil
}

// rewriteQuarantined returns the message that writes a quarantined record again. It is sealed if it dates from before there
// was a key, and nil after its time.
func (b *Bucket) rewriteQuarantined(old *jetstream.RawStreamMsg) (*nats.Msg, error) {
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
	return m, b.sealQuarantined(m)
}
