package bucket

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// The bucket and its keys. An object's key is "object." and its wire.Key, so `nats kv get store object.core.…` prints it.
const (
	bucketName    = "store"
	streamName    = "KV_" + bucketName
	subjectPrefix = "$KV." + bucketName + "."
	objectPrefix  = subjectPrefix + "object."
	cursorSubject = subjectPrefix + "meta.cursor"
	// quarantinePrefix precedes the bad record's sequence.
	quarantinePrefix = subjectPrefix + "quarantine."

	// stateVoid marks the former place of a record that was moved into quarantine.
	stateVoid = "void"
	voidTTL   = time.Hour

	// carriedCheckSize is the length of the checksum of a cursor in a header: a wrong one passes with a chance of 2^-64.
	carriedCheckSize = 8
)

var errChecksum = errors.New("checksum does not match")

// Headers of a record. The KV headers are those of nats.go, so that the stock tools show a deleted object as deleted.
const (
	headerState    = "Frond-State"
	headerUID      = "Frond-Uid"
	headerVersion  = "Frond-Version"
	headerCluster  = "Frond-Cluster-Epoch"
	headerStream   = "Frond-Stream-Epoch"
	headerSequence = "Frond-Sequence"
	headerOrigin   = "Frond-Origin"
	headerChecksum = "Frond-Checksum"
	headerSum      = "Frond-Sum"
	headerSubject  = "Frond-Subject"
	headerReason   = "Frond-Reason"
	headerNames    = "Frond-Names"
	headerCursor   = "Frond-Cursor"
	headerLastGood = "Frond-Last-Good"
	headerSealed   = "Frond-Sealed"
	headerKV       = "KV-Operation"
	headerTTL      = "Nats-TTL"
	kvDelete       = "DEL"
	sealedValue    = "yes"
)

// Codec converts between records and the messages of the bucket. It may be used concurrently.
type Codec struct {
	// TombstoneTTL is how long delete markers stay on disk, at least 1 s.
	TombstoneTTL time.Duration
	// Sealing seals the payloads of secret objects.
	Sealing record.Sealing
}

// EncodeRecord returns the message of a record with computed checksums, sealed if it must be.
func (c Codec) EncodeRecord(r *record.Record) (*nats.Msg, error) {
	c.Sealing.Prepare(r)
	m := nats.NewMsg(objectPrefix + r.Key.String())
	setHeader(m, headerState, string(r.State))
	setHeader(m, headerUID, r.UID)
	setHeader(m, headerVersion, r.Version)
	setHeader(m, headerCluster, r.ClusterEpoch)
	setHeader(m, headerStream, r.StreamEpoch)
	if r.LastRemoteSeq > 0 {
		setHeader(m, headerSequence, strconv.FormatUint(r.LastRemoteSeq, 10))
	}
	if r.Desired {
		setHeader(m, headerOrigin, "desired")
	}
	setHeader(m, headerChecksum, hex.EncodeToString(r.Check[:]))
	if !r.LastGood.IsZero() {
		setHeader(m, headerLastGood, r.LastGood.UTC().Format(time.RFC3339))
	}
	switch {
	case r.State != record.Live:
		setHeader(m, headerKV, kvDelete)
		if r.State == record.Tombstone {
			setHeader(m, headerTTL, c.TombstoneTTL.String())
		}
	case r.Salt == nil:
		m.Data = r.Object
	default:
		data, err := c.Sealing.Seal(r)
		if err != nil {
			return nil, err
		}
		m.Data, r.NeedsReseal = data, false
		setHeader(m, headerSealed, sealedValue)
	}
	return m, nil
}

func setHeader(m *nats.Msg, header, value string) {
	if value != "" {
		m.Header.Set(header, value)
	}
}

// parseRecord reverses EncodeRecord; sequence becomes the revision.
func (c Codec) parseRecord(subject string, header nats.Header, data []byte, sequence uint64) (*record.Record, error) {
	key, err := wire.ParseKey(strings.TrimPrefix(subject, objectPrefix))
	if err != nil {
		return nil, err
	}
	r := &record.Record{
		Entry: record.Entry{
			Key: key, UID: header.Get(headerUID), Version: header.Get(headerVersion),
			ClusterEpoch: header.Get(headerCluster), Revision: sequence,
		},
		State:       record.State(header.Get(headerState)),
		Desired:     header.Get(headerOrigin) == "desired",
		StreamEpoch: header.Get(headerStream),
	}
	if v := header.Get(headerSequence); v != "" {
		if r.LastRemoteSeq, err = strconv.ParseUint(v, 10, 64); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerSequence, err)
		}
	}
	switch r.State {
	case record.Live:
		if err := c.Sealing.Unseal(r, header.Get(headerSealed) != "", data); err != nil {
			return nil, err
		}
	case record.Gone, record.Tombstone:
	default:
		return nil, fmt.Errorf("state %q: %w", r.State, errChecksum)
	}
	if v := header.Get(headerLastGood); v != "" {
		if r.LastGood, err = time.Parse(time.RFC3339, v); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerLastGood, err)
		}
	}
	r.Derive()
	if header.Get(headerChecksum) != hex.EncodeToString(r.Check[:]) {
		return nil, errChecksum
	}
	return r, nil
}

// EncodeCursor returns the message of a cursor. neverPlain: the bucket has never held a secret as plain text.
func EncodeCursor(c wire.Cursor, neverPlain bool) (*nats.Msg, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode cursor: %w", err)
	}
	m := nats.NewMsg(cursorSubject)
	m.Data = data
	check := record.Checksum(string(data))
	setHeader(m, headerChecksum, hex.EncodeToString(check[:]))
	if neverPlain {
		setHeader(m, headerSealed, sealedValue)
	}
	return m, nil
}

// State is what a store is after a message of its bucket. Each message says it, so that the last one that a crash leaves proves
// how far the store is, and that nothing before it was lost.
type State struct {
	// Sum and Names are the sums over all records and over all names; see record.Record.ChecksumTerm.
	Sum, Names uint64
	// Cursor is the store's cursor. Without a store epoch a message does not carry it.
	Cursor wire.Cursor
}

// SetState adds the state of the store after a message to the message.
func SetState(m *nats.Msg, s State) {
	setHeader(m, headerSum, strconv.FormatUint(s.Sum, 16))
	setHeader(m, headerNames, strconv.FormatUint(s.Names, 16))
	if s.Cursor.StoreEpoch != "" && m.Subject != cursorSubject { // a cursor's own record has it as its payload
		setHeader(m, headerCursor, encodeCarriedCursor(s.Cursor))
	}
}

// encodeCarriedCursor returns a cursor as one line: both epochs, quoted, the sequence, and a checksum of these.
func encodeCarriedCursor(c wire.Cursor) string {
	text := strconv.Quote(c.StoreEpoch) + " " + strconv.Quote(c.StreamEpoch) + " " + strconv.FormatUint(c.Sequence, 10)
	check := record.Checksum(text)
	return text + " " + hex.EncodeToString(check[:carriedCheckSize])
}

// parseCarriedCursor returns the cursor that a message carries, nil for none.
func parseCarriedCursor(header nats.Header) (*wire.Cursor, error) {
	line := header.Get(headerCursor)
	if line == "" {
		return nil, nil
	}
	end := max(0, strings.LastIndexByte(line, ' '))
	check := record.Checksum(line[:end])
	if line[end:] != " "+hex.EncodeToString(check[:carriedCheckSize]) {
		return nil, fmt.Errorf("header %s: %w", headerCursor, errChecksum)
	}
	var c wire.Cursor
	rest, err := line[:end], error(nil)
	for _, epoch := range []*string{&c.StoreEpoch, &c.StreamEpoch} {
		quoted, _ := strconv.QuotedPrefix(rest) // "" fails in Unquote
		if *epoch, err = strconv.Unquote(quoted); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerCursor, err)
		}
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	if c.Sequence, err = strconv.ParseUint(rest, 10, 64); err != nil {
		return nil, fmt.Errorf("header %s: %w", headerCursor, err)
	}
	return &c, nil
}

func parseCursor(header nats.Header, data []byte) (wire.Cursor, error) {
	check := record.Checksum(string(data))
	if header.Get(headerChecksum) != hex.EncodeToString(check[:]) {
		return wire.Cursor{}, errChecksum
	}
	var c wire.Cursor
	if err := json.Unmarshal(data, &c); err != nil {
		return wire.Cursor{}, fmt.Errorf("decode cursor: %w", err)
	}
	return c, nil
}
