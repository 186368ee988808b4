package telemetry

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/topology"
)

// record is one message of the leaf's stream: samples with consecutive numbers.
type record struct {
	sequence     uint64
	run          string
	first, count uint64
	// size is that of the lines when they are decompressed.
	size   int
	source Source
	// attempt tells records apart; "" of an older version.
	attempt string
	data    []byte
}

// last is the number of the last sample.
func (r *record) last() uint64 { return r.first + r.count - 1 }

func parseRecord(m *jetstream.RawStreamMsg) (*record, error) {
	r := &record{sequence: m.Sequence, run: m.Header.Get(lines.HeaderRun), attempt: m.Header.Get(headerAttempt), data: m.Data}
	var err error
	if r.first, err = strconv.ParseUint(m.Header.Get(headerFirst), 10, 64); err != nil {
		return nil, fmt.Errorf("header %s: %w", headerFirst, err)
	}
	if r.count, err = strconv.ParseUint(m.Header.Get(headerCount), 10, 64); err != nil {
		return nil, fmt.Errorf("header %s: %w", headerCount, err)
	}
	r.size = lines.MaxDecoded / 2 // of an older version
	if text := m.Header.Get(headerSize); text != "" {
		if r.size, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerSize, err)
		}
	}
	if stream, sequence, ok := strings.Cut(m.Header.Get(headerSource), "/"); ok {
		r.source.Stream = stream
		if r.source.Sequence, err = strconv.ParseUint(sequence, 10, 64); err != nil {
			return nil, fmt.Errorf("header %s: %w", headerSource, err)
		}
	}
	if r.run == "" || r.first == 0 || r.count == 0 || r.count > lines.MaxLines {
		return nil, fmt.Errorf("record of %d samples from %d of run %q", r.count, r.first, r.run)
	}
	return r, nil
}

// readRecords returns the records after a sequence in the leaf's stream, as many as one request takes: of one run, and of at most size
// bytes if they are more than one. damaged counts the messages that were passed over because they cannot be read; after is the sequence of
// the last message that was read.
func (s *Store) readRecords(ctx context.Context, from uint64, size int) (records []*record, damaged int, after uint64, err error) {
	after = from
	bytes, plain, samples := 0, 0, uint64(0)
	for {
		m, err := s.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(s.kind.LeafSubject))
		if topology.IsNotFound(err) {
			return records, damaged, after, nil
		}
		if err != nil {
			return nil, 0, from, fmt.Errorf("telemetry: read a record: %w", err)
		}
		r, err := parseRecord(m)
		if err != nil {
			damaged, after = damaged+1, m.Sequence
			continue
		}
		if len(records) > 0 && (bytes+len(r.data) > size || plain+r.size > lines.MaxDecoded || samples+r.count > lines.MaxLines || r.run != records[0].run) {
			return records, damaged, after, nil
		}
		records, after = append(records, r), m.Sequence
		bytes, plain, samples = bytes+len(r.data), plain+r.size, samples+r.count
	}
}

// sentSuffix ends the subject of the message that says up to which record the hub has all.
const sentSuffix = ".sent"

// forget removes the records before a sequence: the hub has them. The one of the sequence stays, because its numbers are needed after a
// restart; that it is sent is written down, because the hub forgets it in time.
func (s *Store) forget(ctx context.Context, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if _, err := s.js.Publish(ctx, s.kind.LeafSubject+sentSuffix, []byte(strconv.FormatUint(sequence, 10))); err != nil {
		return fmt.Errorf("telemetry: store what is sent: %w", err)
	}
	if err := s.stream.Purge(ctx, jetstream.WithPurgeSequence(sequence)); err != nil {
		return fmt.Errorf("telemetry: remove sent records: %w", err)
	}
	return nil
}

// waiting returns what the stream holds.
func (s *Store) waiting(ctx context.Context) (jetstream.StreamState, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("telemetry: %w", err)
	}
	return info.State, nil
}

// readSent returns the sequence of the last record that is known to be in the hub, 0 for none, and the run and number of its last line, if it is
// still there.
func (s *Store) readSent(ctx context.Context) (sequence uint64, run string, number uint64, err error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, s.kind.LeafSubject+sentSuffix)
	switch {
	case topology.IsNotFound(err):
		return 0, "", 0, nil
	case err != nil:
		return 0, "", 0, fmt.Errorf("telemetry: read what is sent: %w", err)
	}
	sequence, err = strconv.ParseUint(string(m.Data), 10, 64)
	if err != nil || sequence >= m.Sequence { // of another life of the stream: it was damaged and made again
		return 0, "", 0, nil //nolint:nilerr // what is sent twice is recognized
	}
	if m, err = s.stream.GetMsg(ctx, sequence); topology.IsNotFound(err) {
		return sequence, "", 0, nil
	} else if err != nil {
		return 0, "", 0, fmt.Errorf("telemetry: read what is sent: %w", err)
	}
	if r, err := parseRecord(m); err == nil {
		return sequence, r.run, r.last(), nil
	}
	return sequence, "", 0, nil
}
