package mapper

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// The keys of records. A protocol is any text; an escaped one has no slash.
const (
	mapperPrefix = "mapper/"
	devicePrefix = "device/"
)

func mapperKey(protocol string) string { return mapperPrefix + url.PathEscape(protocol) }

func deviceKey(protocol string, id types.NamespacedName) string {
	return devicePrefix + url.PathEscape(protocol) + "/" + id.String()
}

// parseKey undoes mapperKey and deviceKey. id is empty for a mapper.
func parseKey(key string) (protocol string, id types.NamespacedName, err error) {
	rest, isMapper := strings.CutPrefix(key, mapperPrefix)
	if !isMapper {
		parts := strings.Split(strings.TrimPrefix(key, devicePrefix), "/")
		if !strings.HasPrefix(key, devicePrefix) || len(parts) != 3 {
			return "", id, fmt.Errorf("key %q", key)
		}
		rest, id = parts[0], types.NamespacedName{Namespace: parts[1], Name: parts[2]}
	}
	if protocol, err = url.PathUnescape(rest); err != nil {
		return "", id, fmt.Errorf("key %q: %w", key, err)
	}
	return protocol, id, nil
}

// storedEntry is the JSON of an entry. The messages are in their encoding on the wire.
type storedEntry struct {
	Device []byte `json:"device"`
	Model  []byte `json:"model"`
	Sum    []byte `json:"sum"`
	Resend bool   `json:"resend,omitempty"`
}

// encodeEntry returns the record of a device, or nil if the mapper does not have it.
func encodeEntry(e *entry) []byte {
	if e.has == absent {
		return nil
	}
	s := storedEntry{Sum: e.sum[:], Resend: e.resend}
	for to, from := range map[*[]byte]proto.Message{&s.Device: e.device, &s.Model: e.model} {
		raw, err := proto.Marshal(from)
		if err != nil {
			return []byte("{}") // it was encoded before; an empty record is one that is sent again
		}
		*to = raw
	}
	return encodeJSON(s)
}

// decodeEntry reads a record. It is uncertain: the last call before the restart may not be in it.
func decodeEntry(raw []byte) (*entry, error) {
	var s storedEntry
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	e := &entry{has: uncertain, resend: s.Resend, device: &dmipb.Device{}, model: &dmipb.DeviceModel{}}
	if len(s.Sum) != len(e.sum) {
		return nil, fmt.Errorf("a sum of %d bytes", len(s.Sum))
	}
	copy(e.sum[:], s.Sum)
	if err := proto.Unmarshal(s.Device, e.device); err != nil {
		return nil, fmt.Errorf("the device: %w", err)
	}
	if err := proto.Unmarshal(s.Model, e.model); err != nil {
		return nil, fmt.Errorf("the model: %w", err)
	}
	return e, nil
}

func encodeRegistration(r Registration) []byte { return encodeJSON(r) }

// encodeJSON encodes texts and bytes, which cannot fail.
func encodeJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return raw
}

// saveTimeout bounds a write: a mapper waits one second for the answer to its registration, and gets it also while the disk is full.
const saveTimeout = 300 * time.Millisecond

// recordWriter writes records one after the other.
type recordWriter struct {
	store RecordStore
	// turn has a place for the one that writes.
	turn chan struct{}
}

func newRecordWriter(store RecordStore) *recordWriter {
	return &recordWriter{store: store, turn: make(chan struct{}, 1)}
}

// write stores what collect returns. It collects when it is its turn, so that the latest state is what stays.
func (w *recordWriter) write(ctx context.Context, collect func() (records map[string][]byte, failed func())) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	records, failed := collect()
	if len(records) == 0 {
		return nil
	}
	err := w.store.SaveMapperRecords(ctx, records)
	if err != nil {
		failed()
	}
	return err
}

// loaded is what the record store has of one protocol.
type loaded struct {
	registration Registration
	entries      map[types.NamespacedName]*entry
}

// decodeRecords reads all records. Damaged ones are returned as errors; their keys are to be deleted.
func decodeRecords(records map[string][]byte) (protocols map[string]*loaded, damaged map[string]error) {
	protocols, damaged = map[string]*loaded{}, map[string]error{}
	for key, raw := range records {
		protocol, id, err := parseKey(key)
		if err != nil {
			damaged[key] = err
			continue
		}
		l := protocols[protocol]
		if l == nil {
			l = &loaded{entries: map[types.NamespacedName]*entry{}}
			protocols[protocol] = l
		}
		if id == (types.NamespacedName{}) {
			err = json.Unmarshal(raw, &l.registration)
		} else if e, decodeErr := decodeEntry(raw); decodeErr != nil {
			err = decodeErr
		} else {
			l.entries[id] = e
		}
		if err != nil {
			damaged[key] = err
		}
	}
	return protocols, damaged
}
