package telemetry

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
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

// sent is how far the hub has what the store holds.
type sent struct {
	// sequence is that of the last record that the hub has, 0 for none; run and number are those of its last line, "" and 0 if they are not known.
	sequence uint64
	run      string
	number   uint64
	// unknown says that something is sent, but not what.
	unknown bool
}

// writeSent writes down what is sent, and returns the sequence of that note.
func (s *Store) writeSent(ctx context.Context, at sent) (uint64, error) {
	msg := &nats.Msg{Subject: s.kind.LeafSubject + sentSuffix, Data: []byte(strconv.FormatUint(at.sequence, 10)), Header: nats.Header{}}
	if at.number > 0 {
		msg.Header[lines.HeaderRun], msg.Header[lines.HeaderNumber] = []string{at.run}, []string{strconv.FormatUint(at.number, 10)}
	}
	ack, err := s.js.PublishMsg(ctx, msg)
	if err != nil {
		return 0, fmt.Errorf("telemetry: store what is sent: %w", err)
	}
	return ack.Sequence, nil
}

// forget removes the records before what is sent last: the hub has them. The last one stays, because its numbers are needed after a restart; that it is
// sent is written down, because the hub forgets it in time. It returns the sequence of that note.
func (s *Store) forget(ctx context.Context, at sent) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	note, err := s.writeSent(ctx, at)
	if err != nil {
		return 0, err
	}
	if err := s.stream.Purge(ctx, jetstream.WithPurgeSequence(at.sequence)); err != nil {
		return 0, fmt.Errorf("telemetry: remove sent records: %w", err)
	}
	return note, nil
}

// waiting returns what the stream holds.
func (s *Store) waiting(ctx context.Context) (jetstream.StreamState, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("telemetry: %w", err)
	}
	return info.State, nil
}

// readSent returns what is known to be sent, and the sequence of the note that says so.
func (s *Store) readSent(ctx context.Context) (at sent, note uint64, err error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, s.kind.LeafSubject+sentSuffix)
	switch {
	case topology.IsNotFound(err):
		return sent{}, 0, nil
	case err != nil:
		return sent{}, 0, fmt.Errorf("telemetry: read what is sent: %w", err)
	}
	if at.number, err = strconv.ParseUint(m.Header.Get(lines.HeaderNumber), 10, 64); err == nil {
		at.run = m.Header.Get(lines.HeaderRun)
	}
	at.unknown = at.run == ""
	at.sequence, err = strconv.ParseUint(string(m.Data), 10, 64)
	if err != nil || at.sequence >= m.Sequence { // of another life of the stream: it was damaged and made again
		at.sequence = 0            // what is sent twice is recognized
		return at, m.Sequence, nil //nolint:nilerr // as said
	}
	if !at.unknown {
		return at, m.Sequence, nil
	}
	last, err := s.stream.GetMsg(ctx, at.sequence) // of an older version
	if topology.IsNotFound(err) {
		return at, m.Sequence, nil
	} else if err != nil {
		return sent{}, 0, fmt.Errorf("telemetry: read what is sent: %w", err)
	}
	if r, err := parseRecord(last); err == nil {
		at.run, at.number, at.unknown = r.run, r.last(), false
	}
	return at, m.Sequence, nil
}
