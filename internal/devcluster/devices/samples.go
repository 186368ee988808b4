package devices

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/streams/subject"
)

// maxSamples bounds what HubSamples reads: hours of a sensor.
const maxSamples = 100_000

// HubSequence returns the position of the last sample of any device in the hub's stream.
func (d *Devices) HubSequence(ctx context.Context) (last uint64, err error) {
	return last, d.withStream(ctx, func(stream jetstream.Stream) error {
		info, err := stream.Info(ctx)
		if err == nil {
			last = info.State.LastSeq
		}
		return err
	})
}

// HubSamples returns the numbers of a sensor in the hub's stream after a position, in their order.
func (d *Devices) HubSamples(ctx context.Context, v Device, after uint64) (numbers []int64, err error) {
	return numbers, d.withStream(ctx, func(stream jetstream.Stream) error {
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
			FilterSubjects: []string{subject.SampleSubject(v.Edge, v.Namespace, v.Name, sensor.Sample)},
			DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
		})
		if err != nil {
			return err
		}
		batch, err := consumer.FetchNoWait(maxSamples)
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			number, err := strconv.ParseInt(string(m.Data()), 10, 64)
			if err != nil {
				return fmt.Errorf("sample %d: %w", len(numbers)+1, err)
			}
			numbers = append(numbers, number)
		}
		return batch.Error()
	})
}

// withStream reads the hub's stream of samples as the administrator, as the nats CLI does.
func (d *Devices) withStream(ctx context.Context, read func(jetstream.Stream) error) error {
	admin, err := natscontext.NewFromFile(d.f.Layout.Path("nats", "context.json"))
	if err != nil {
		return fmt.Errorf("read the context of the nats CLI: %w", err)
	}
	nc, err := admin.Connect()
	if err != nil {
		return fmt.Errorf("connect to the hub: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("read the hub's stream: %w", err)
	}
	stream, err := js.Stream(ctx, subject.TelemetryStream)
	if err == nil {
		err = read(stream)
	}
	if err != nil {
		return fmt.Errorf("read the hub's stream %s: %w", subject.TelemetryStream, err)
	}
	return nil
}
