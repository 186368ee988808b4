package record_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/test/kit"
)

func newRecord(change func(*record.Record)) *record.Record {
	r := &record.Record{
		Entry: record.Entry{Key: wire.Key{Resource: "secrets", Namespace: "default", Name: "a"}, UID: "u", Version: "1", ClusterEpoch: "c", Object: []byte("{}")},
		State: record.Live, LastRemoteSeq: 7, StreamEpoch: "s",
	}
	change(r)
	r.Derive()
	return r
}

// Each field that is written changes the checksum; only the object's identity changes the part of the sum over names.
func TestDerive_CoversEachField(t *testing.T) {
	plain := newRecord(func(*record.Record) {})
	for name, tt := range map[string]struct {
		change func(*record.Record)
		named  bool
	}{
		"key":             {func(r *record.Record) { r.Key.Name = "b" }, true},
		"state":           {func(r *record.Record) { r.State = record.Gone }, true},
		"UID":             {func(r *record.Record) { r.UID = "v" }, true},
		"version":         {func(r *record.Record) { r.Version = "2" }, false},
		"cluster epoch":   {func(r *record.Record) { r.ClusterEpoch = "d" }, false},
		"stream epoch":    {func(r *record.Record) { r.StreamEpoch = "t" }, false},
		"sequence":        {func(r *record.Record) { r.LastRemoteSeq++ }, false},
		"origin":          {func(r *record.Record) { r.Desired = true }, false},
		"object":          {func(r *record.Record) { r.Object = []byte("{ }") }, false},
		"salt":            {func(r *record.Record) { r.Salt = []byte("x") }, false},
		"place of a byte": {func(r *record.Record) { r.UID, r.Version = "u1", "" }, true},
	} {
		changed := newRecord(tt.change)
		if changed.Check == plain.Check || changed.ChecksumTerm() == plain.ChecksumTerm() || tt.named != (changed.NameTerm() != plain.NameTerm()) {
			t.Errorf("%s: checksum %x as before, or name %x", name, changed.Check, changed.NameTerm())
		}
	}
	if gone := newRecord(func(r *record.Record) { r.State = record.Tombstone }); gone.ChecksumTerm() != 0 || gone.NameTerm() != 0 {
		t.Error("a tombstone, which expires, is part of a sum")
	}
}

func TestSealing_RestoresSaltAndObject(t *testing.T) {
	ring, err := seal.New(bytes.Repeat([]byte{1}, seal.KeySize))
	kit.Must(t, err)
	sealing := record.Sealing{Sealer: ring}
	r := newRecord(func(*record.Record) {})
	sealing.Prepare(r)
	data, err := sealing.Seal(r)
	kit.Must(t, err)
	again := newRecord(func(r *record.Record) { r.Object = nil })
	kit.Must(t, sealing.Unseal(again, true, data))
	if again.Derive(); again.Check != r.Check || !bytes.Equal(again.Object, r.Object) || again.NeedsReseal {
		t.Errorf("opened as %+v, sealed as %+v", again, r)
	}
	if err := (record.Sealing{}).Unseal(again, true, data); err == nil {
		t.Error("opened without a key")
	}
	kit.Must(t, sealing.Unseal(again, false, []byte("{}")))
	if !again.NeedsReseal {
		t.Error("a secret that was plain text stays so")
	}
}

func TestParseUID(t *testing.T) {
	for _, bad := range []string{"", "null", "{}", `{"metadata":null}`, "[1]"} {
		if _, err := record.ParseUID([]byte(bad)); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
