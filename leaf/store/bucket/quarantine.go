package bucket

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// quarantineTTL is how long bad bytes are kept for inspection.
const quarantineTTL = 7 * 24 * time.Hour

// Quarantine returns the change that keeps a bad record for inspection. The bytes of a secret that came as plain text are sealed.
func (c Codec) Quarantine(bad BadRecord) (record.Change, error) {
	m := nats.NewMsg(quarantinePrefix + strconv.FormatUint(bad.Revision, 10))
	m.Data = bad.Data
	setHeader(m, headerSubject, bad.Subject)
	setHeader(m, headerReason, bad.Reason.Error())
	setHeader(m, headerTTL, quarantineTTL.String())
	if sealed := bad.Header.Get(headerSealed); sealed != "" {
		setHeader(m, headerSealed, sealed)
		return record.Change{Raw: m}, nil
	}
	if err := c.sealQuarantined(m); err != nil {
		return record.Change{}, err
	}
	return record.Change{Raw: m}, nil
}

// sealQuarantined seals the bytes of a secret that are kept as plain text.
func (c Codec) sealQuarantined(m *nats.Msg) error {
	key, err := wire.ParseKey(strings.TrimPrefix(m.Header.Get(headerSubject), objectPrefix))
	if err == nil && m.Header.Get(headerSealed) == "" && c.Sealing.IsSecret(key) {
		sealed, err := c.Sealing.Sealer.Seal(m.Subject, m.Data)
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

// rewriteQuarantined returns the message that writes a quarantined record again. It is sealed if it dates from before there
// was a key, and nil after its time.
func (c Codec) rewriteQuarantined(old *jetstream.RawStreamMsg) (*nats.Msg, error) {
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
	return m, c.sealQuarantined(m)
}
