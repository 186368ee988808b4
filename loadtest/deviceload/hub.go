package deviceload

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/loadtest/workload"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/telemetry"
)

const (
	// arrivalPoll is how exactly arrivals are timed.
	arrivalPoll = 20 * time.Millisecond
	// stalled is how long nothing arrives before what is missing counts as lost. It is longer than a redial and a takeover.
	stalled = 30 * time.Second
)

// sample is a sample in the hub's stream.
type sample struct {
	number     int64
	deviceTime string
}

// hubStream reads the samples of one gateway in the hub.
type hubStream struct {
	js   jetstream.JetStream
	edge string
}

// stream returns the hub's stream of samples.
func (h hubStream) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := h.js.Stream(ctx, subject.TelemetryStream)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", subject.TelemetryStream, err)
	}
	return stream, nil
}

// position returns the hub's last position.
func (h hubStream) position(ctx context.Context) (uint64, error) {
	stream, err := h.stream(ctx)
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// arrival is when samples arrived in the hub.
type arrival struct {
	// began is when the first was seen, ended when the last was.
	began, ended time.Time
	count        int
}

// awaitArrival waits until so many messages are behind a position, or until no more come.
func (h hubStream) awaitArrival(ctx context.Context, after uint64, want int) (a arrival, err error) {
	stream, err := h.stream(ctx)
	if err != nil {
		return a, err
	}
	ticker := time.NewTicker(arrivalPoll)
	defer ticker.Stop()
	progress := time.Now()
	for a.count < want && time.Since(progress) < stalled {
		select {
		case <-ctx.Done():
			return a, context.Cause(ctx)
		case <-ticker.C:
		}
		info, err := stream.Info(ctx)
		if err != nil {
			return a, fmt.Errorf("read %s: %w", subject.TelemetryStream, err)
		}
		count := int(info.State.LastSeq) - int(after)
		if count <= a.count {
			continue
		}
		progress = time.Now()
		if a.count == 0 {
			a.began = progress
		}
		a.ended, a.count = progress, count
	}
	return a, nil
}

// readSamples reads the samples behind a position by device, in their order.
func (h hubStream) readSamples(ctx context.Context, after uint64) (map[string][]sample, error) {
	all := map[string][]sample{}
	stream, err := h.stream(ctx)
	if err != nil {
		return nil, err
	}
	filter := subject.TelemetryPrefix + wire.Escape(h.edge) + "." + workload.Namespace + ".*." + sensor.Sample
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject.TelemetryStream, err)
	}
	if info, err := consumer.Info(ctx); err != nil || info.NumPending == 0 {
		return all, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject.TelemetryStream, err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", subject.TelemetryStream, err)
		}
		number, err := strconv.ParseInt(string(m.Data()), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("a sample of %s: %w", m.Subject(), err)
		}
		name := strings.Split(m.Subject(), ".")[3]
		all[name] = append(all[name], sample{number, m.Headers().Get(telemetry.HeaderDeviceTime)})
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("a sample of %s: %w", m.Subject(), err)
		}
		if meta.NumPending == 0 {
			return all, nil
		}
	}
}

// expectation is what the hub should have of one device: the numbers after one up to another.
type expectation struct{ after, last int64 }

// compareSamples compares samples with what was sent. lost counts numbers that are not there; the error names each kind of fault once.
func compareSamples(want map[string]expectation, hub map[string][]sample, timeOf func(int64) time.Time) (lost int, err error) {
	all, faults, first := 0, 0, ""
	fault := func(format string, args ...any) {
		if faults++; first == "" {
			first = fmt.Sprintf(format, args...)
		}
	}
	for name, e := range want {
		have, previous := map[int64]bool{}, e.after
		for _, s := range hub[name] {
			if s.number <= previous {
				fault("%s: %d comes after %d", name, s.number, previous)
			}
			if at, err := time.Parse(time.RFC3339Nano, s.deviceTime); err != nil || !at.Equal(timeOf(s.number)) {
				fault("%s: %d has the time %q, want %s", name, s.number, s.deviceTime, timeOf(s.number))
			}
			previous, have[s.number] = max(previous, s.number), true
		}
		if previous > e.last {
			fault("%s: %d was never acked", name, previous)
		}
		for number := e.after + 1; number <= e.last; number++ {
			if all++; !have[number] {
				lost++
				fault("%s: %d is missing", name, number)
			}
		}
	}
	if faults > 0 {
		return lost, fmt.Errorf("%w: %d of %d missing, %d faults, such as %s", ErrLost, lost, all, faults, first)
	}
	return 0, nil
}
