package published

import (
	"encoding/hex"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/shortkey"
)

// table holds records by their keys in little memory: a replica holds those of all objects of its nodes. Most records are
// packed; one that packing would change, or whose time is compared with the clock, is kept as it is.
type table struct {
	packed map[shortkey.Key]*packedRecord
	whole  map[wire.Key]Record
}

// packedRecord is a Record of a live object whose texts have their usual form, in 64 bytes.
type packedRecord struct {
	sequence uint64
	madeAt   int64 // in ns since 1970
	// marked is the version, shifted by markBits, and the marks. A version, and acked, are 0 for none.
	marked, acked uint64
	uid, digest   [16]byte
}

// The marks of a packedRecord. The lowest bits are the place of its reason in plainReasons.
const (
	reasonMarks = 1<<3 - 1
	hasUID      = 1 << 3
	hasDigest   = 1 << 4
	foreign     = 1 << 5
	markBits    = 6
)

// plainReasons returns the reasons that a packedRecord can have.
func plainReasons() [5]wire.DeletionReason {
	return [...]wire.DeletionReason{"", wire.DeletionTerminating, wire.DeletionPodEnded, wire.DeletionWithoutGrace, wire.DeletionOfCopy}
}

// uidLength is the length of a UUID as text, and dashes are the places of its dashes.
const uidLength = 36

func dashes() [4]int { return [...]int{8, 13, 18, 23} }

// pack packs a record; ok is false for one that would not be the same when it is unpacked.
func pack(r Record) (p *packedRecord, ok bool) {
	reasons := plainReasons()
	reason := slices.Index(reasons[:], r.DeletionReason)
	if r.Deleted || reason < 0 {
		return nil, false
	}
	version, _ := strconv.ParseUint(r.Version, 10, 64) // the comparison below finds what is not a number, or too large
	p = &packedRecord{sequence: r.Sequence, madeAt: r.MadeAt.UnixNano(), marked: version<<markBits | uint64(reason)}
	p.acked, _ = strconv.ParseUint(r.ackedVersion, 10, 64)
	if len(r.UID) == uidLength {
		text := make([]byte, 0, 2*len(p.uid))
		for i := range uidLength {
			if d := dashes(); !slices.Contains(d[:], i) {
				text = append(text, r.UID[i])
			}
		}
		_, _ = hex.Decode(p.uid[:], text)
		p.marked |= hasUID
	}
	if len(r.Digest) == 2*len(p.digest) {
		_, _ = hex.Decode(p.digest[:], []byte(r.Digest))
		p.marked |= hasDigest
	}
	if r.ForeignEpoch {
		p.marked |= foreign
	}
	back := p.record()
	same := back.MadeAt.Equal(r.MadeAt)
	back.MadeAt = r.MadeAt
	return p, same && back == r
}

func (p *packedRecord) time() time.Time { return time.Unix(0, p.madeAt) }

// record unpacks the record.
func (p *packedRecord) record() Record {
	r := Record{
		Sequence: p.sequence, Version: formatVersion(p.marked >> markBits), ackedVersion: formatVersion(p.acked), DeletionReason: plainReasons()[p.marked&reasonMarks],
		MadeAt: p.time(), ForeignEpoch: p.marked&foreign != 0,
	}
	if p.marked&hasUID != 0 {
		text := hex.AppendEncode(make([]byte, 0, uidLength), p.uid[:])
		for _, at := range dashes() {
			text = slices.Insert(text, at, '-')
		}
		r.UID = string(text)
	}
	if p.marked&hasDigest != 0 {
		r.Digest = hex.EncodeToString(p.digest[:])
	}
	return r
}

func formatVersion(v uint64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatUint(v, 10)
}

func newTable(size int) *table {
	return &table{packed: make(map[shortkey.Key]*packedRecord, size), whole: map[wire.Key]Record{}}
}

// get returns a record; ok is false if there is none. A nil table has none.
func (t *table) get(key wire.Key) (r Record, ok bool) {
	if t == nil {
		return Record{}, false
	}
	if r, ok := t.whole[key]; ok {
		return r, true
	}
	p, ok := t.packed[shortkey.Of(key)]
	if !ok {
		return Record{}, false
	}
	return p.record(), true
}

func (t *table) set(key wire.Key, r Record) {
	_, marker := wire.ScopeOf(key) // its time is compared
	if p, ok := pack(r); ok && !marker {
		delete(t.whole, key)
		k := shortkey.Of(key)
		if _, known := t.packed[k]; !known {
			k = k.WithName(strings.Clone(key.Name)) // it may be a part of a longer text
		}
		t.packed[k] = p
		return
	}
	delete(t.packed, shortkey.Of(key))
	t.whole[key] = r
}

func (t *table) remove(key wire.Key) {
	delete(t.whole, key)
	delete(t.packed, shortkey.Of(key))
}

// summary is what walks over all records read.
type summary struct {
	sequence uint64
	madeAt   time.Time
	deleted  bool
}

// all yields each key, without unpacking its record. A nil table has none.
func (t *table) all() iter.Seq2[wire.Key, summary] {
	return func(yield func(wire.Key, summary) bool) {
		if t == nil {
			return
		}
		for key, r := range t.whole {
			if !yield(key, summary{r.Sequence, r.MadeAt, r.Deleted}) {
				return
			}
		}
		for key, p := range t.packed {
			if !yield(key.Wire(), summary{p.sequence, p.time(), false}) {
				return
			}
		}
	}
}
