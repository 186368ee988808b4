package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
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
)

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
	headerLastGood = "Frond-Last-Good"
	headerSealed   = "Frond-Sealed"
	headerKV       = "KV-Operation"
	headerTTL      = "Nats-TTL"
	kvDelete       = "DEL"
)

// state is the state of a record's object.
type state string

const (
	stateLive state = "live"
	// stateGone: deleted at this node; the cloud has not confirmed it yet.
	stateGone state = "gone"
	// stateTombstone: deleted by the cloud, or deleted here and confirmed.
	stateTombstone state = "tombstone"
)

// record is the latest state of one key.
type record struct {
	Entry
	state state
	// desired: the cloud sent this object, so a full snapshot without it deletes it.
	desired bool
	// lastRemoteSeq is the sequence of the newest hub message for the key, within the stream epoch. Messages below it are ignored.
	lastRemoteSeq uint64
	epoch         string
	// salt is part of the checksum of a sealed record and is sealed with it. Without it, an attacker who guesses a Secret
	// could verify the guess by the checksum. nil for a record that is not sealed.
	salt []byte
	// needsReseal: the record was read as plain text, or sealed with an older key, and must be sealed again.
	needsReseal bool
	// check is the checksum of the record as written, set by computeChecksums.
	check [16]byte
	// nameHash is the record's part of the sum over all names, set by computeChecksums.
	nameHash uint64
}

// isDurable reports whether the record must stay on disk permanently: such records make up the sum that proves that none was lost.
func (r *record) isDurable() bool { return r != nil && r.state != stateTombstone }

// checksumTerm returns the record's part of the sum over all records. A sum can be updated by one subtraction and one
// addition and does not depend on order. A lost or changed record leaves it wrong but for a chance of 2^-64.
func (r *record) checksumTerm() uint64 {
	if !r.isDurable() {
		return 0
	}
	return binary.BigEndian.Uint64(r.check[:8])
}

// nameTerm returns the record's part of the sum over all names: that an object with this key and UID, in any version, is
// stored or was deleted here.
func (r *record) nameTerm() uint64 {
	if !r.isDurable() {
		return 0
	}
	return r.nameHash
}

// computeChecksums computes the checksum over all fields of the record except the revision, which the server assigns, and LastGood.
func (r *record) computeChecksums() {
	name := checksum(r.Key.String(), string(r.state), r.UID)
	r.nameHash = binary.BigEndian.Uint64(name[:8])
	content := string(r.Object)
	if r.salt != nil {
		content = string(r.salt) + content
	}
	r.check = checksum(r.Key.String(), string(r.state), r.UID, r.Version, r.ClusterEpoch, r.epoch,
		strconv.FormatUint(r.lastRemoteSeq, 10), strconv.FormatBool(r.desired), content)
}

func checksum(fields ...string) [16]byte {
	h := sha256.New()
	var size [8]byte
	for _, f := range fields {
		binary.BigEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		h.Write([]byte(f))
	}
	return [16]byte(h.Sum(nil))
}

// encodeRecord returns the message of a record with computed checksums, sealed if it must be.
func (s *Store) encodeRecord(r *record) (*nats.Msg, error) {
	s.prepareSealing(r)
	m := nats.NewMsg(objectPrefix + r.Key.String())
	setHeader(m, headerState, string(r.state))
	setHeader(m, headerUID, r.UID)
	setHeader(m, headerVersion, r.Version)
	setHeader(m, headerCluster, r.ClusterEpoch)
	setHeader(m, headerStream, r.epoch)
	if r.lastRemoteSeq > 0 {
		setHeader(m, headerSequence, strconv.FormatUint(r.lastRemoteSeq, 10))
	}
	if r.desired {
		setHeader(m, headerOrigin, "desired")
	}
	setHeader(m, headerChecksum, hex.EncodeToString(r.check[:]))
	if !r.LastGood.IsZero() {
		setHeader(m, headerLastGood, r.LastGood.UTC().Format(time.RFC3339))
	}
	switch {
	case r.state != stateLive:
		setHeader(m, headerKV, kvDelete)
		if r.state == stateTombstone {
			setHeader(m, headerTTL, s.cfg.TombstoneTTL.String())
		}
	case r.salt == nil:
		m.Data = r.Object
	default:
		data, err := s.sealRecord(r)
		if err != nil {
			return nil, err
		}
		m.Data, r.needsReseal = data, false
		setHeader(m, headerSealed, sealedValue)
	}
	return m, nil
}

func setHeader(m *nats.Msg, header, value string) {
	if value != "" {
		m.Header.Set(header, value)
	}
}

var errChecksum = errors.New("checksum does not match")

// parseRecord reverses encodeRecord and, with open, prepareSealing; sequence becomes the revision.
func (s *Store) parseRecord(subject string, header nats.Header, data []byte, sequence uint64) (*record, error) {
	key, err := wire.ParseKey(strings.TrimPrefix(subject, objectPrefix))
	if err != nil {
		return nil, err
	}
	r := &record{
		Entry: Entry{
			Key: key, UID: header.Get(headerUID), Version: header.Get(headerVersion),
			ClusterEpoch: header.Get(headerCluster), Revision: sequence,
		},
		state:   state(header.Get(headerState)),
		desired: header.Get(headerOrigin) == "desired",
		epoch:   header.Get(headerStream),
	}
	if v := header.Get(headerSequence); v != "" {
		if r.lastRemoteSeq, err = strconv.ParseUint(v, 10, 64); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerSequence, err)
		}
	}
	switch r.state {
	case stateLive:
		if err := s.unsealRecord(r, header.Get(headerSealed) != "", data); err != nil {
			return nil, err
		}
	case stateGone, stateTombstone:
	default:
		return nil, fmt.Errorf("state %q: %w", r.state, errChecksum)
	}
	if v := header.Get(headerLastGood); v != "" {
		if r.LastGood, err = time.Parse(time.RFC3339, v); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerLastGood, err)
		}
	}
	r.computeChecksums()
	if header.Get(headerChecksum) != hex.EncodeToString(r.check[:]) {
		return nil, errChecksum
	}
	r.Sequence = r.remoteSequence()
	return r, nil
}

// remoteSequence returns Entry.Sequence: the hub's sequence if the object came from the hub.
func (r *record) remoteSequence() uint64 {
	if !r.desired {
		return 0
	}
	return r.lastRemoteSeq
}

func encodeCursor(c wire.Cursor) (*nats.Msg, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode cursor: %w", err)
	}
	m := nats.NewMsg(cursorSubject)
	m.Data = data
	check := checksum(string(data))
	setHeader(m, headerChecksum, hex.EncodeToString(check[:]))
	return m, nil
}

func parseCursor(header nats.Header, data []byte) (wire.Cursor, error) {
	check := checksum(string(data))
	if header.Get(headerChecksum) != hex.EncodeToString(check[:]) {
		return wire.Cursor{}, errChecksum
	}
	var c wire.Cursor
	if err := json.Unmarshal(data, &c); err != nil {
		return wire.Cursor{}, fmt.Errorf("decode cursor: %w", err)
	}
	return c, nil
}

// parseUID reads the UID from an object's JSON.
func parseUID(object []byte) (uid string, err error) {
	var o struct {
		Metadata *struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if o.Metadata == nil {
		return "", fmt.Errorf("%w: no metadata", ErrInvalid)
	}
	return o.Metadata.UID, nil
}
