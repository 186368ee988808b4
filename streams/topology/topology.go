// Package topology creates the streams and consumers of the hub and of a leaf, keeps them as they should be (Reconciler), and repairs a
// leaf's damaged ones.
package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
)

// The names of Frond's consumers in JetStream.
const (
	// cloudConsumer is the name prefix of the durable consumers that all cloudcores share on REPORT-0 and on EVENT-0.
	cloudConsumer = "cloudcore"
	// PumpConsumer is the durable consumer of the pump on each outbox stream.
	PumpConsumer = "pump"
)

const (
	// MiB is 2^20 bytes.
	MiB = 1 << 20

	// MaxMessage bounds one stored message: the apiserver refuses objects above 3 MiB, etcd above 1.5 MiB.
	MaxMessage = 4 * MiB
	// dedupeWindow is how long the server recognises a repeated message id: longer than any retry of one publish.
	dedupeWindow = 2 * time.Minute
	// maxConsumers is explicit because the server's default of 1,000 is far below the nodes of one partition.
	maxConsumers = 200_000
	// deadLetterMaxAge and deadLetterMaxBytes bound the dead letters, which are evidence for operators, not state.
	deadLetterMaxAge   = 14 * 24 * time.Hour
	deadLetterMaxBytes = 256 * MiB
	// eventAge is how long an event waits for a cloudcore; Kubernetes itself keeps events for an hour.
	eventAge = 24 * time.Hour
	// eventBytes and outboxEventBytes bound telemetry; the oldest goes first.
	eventBytes       = 512 * MiB
	outboxEventBytes = 8 * MiB
	// telemetryAge and telemetryBytes bound the samples of all nodes; the oldest goes first. A million samples take some 300 MB.
	telemetryAge   = 24 * time.Hour
	telemetryBytes = 256 * MiB
	// messagesAge and messagesBytes bound the messages of all nodes' apps; the oldest goes first.
	messagesAge   = 24 * time.Hour
	messagesBytes = 256 * MiB
	// partAge and partBytes bound the parts of reports that never arrived, or that wait for so long that their node is asked again.
	partAge   = 24 * time.Hour
	partBytes = 256 * MiB
	// outboxBytes bounds the reports of one node. The outbox holds last values only, so this guards against a defect; it is not a window.
	outboxBytes = 256 * MiB
	// ackWait is how long a delivered message may stay unacked before it is redelivered: enough for a slow disk.
	ackWait = 30 * time.Second
	// reportAckWait is how long the reports of a dead cloudcore wait for redelivery. A living one sends progress acks for its reports.
	reportAckWait = 10 * time.Second
	// ReportWindow and EventWindow limit the reports that are held or wait for a retry at a time. In each cloudcore a quarter of it may be
	// refused ones, so that these never take all of it.
	ReportWindow = 4096
	// EventWindow is ReportWindow for events.
	EventWindow = 1024
)

// Topology is the set of streams, buckets and consumers that one JetStream must hold.
type Topology struct {
	Streams   []jetstream.StreamConfig
	Consumers []Consumer
	Buckets   []jetstream.KeyValueConfig
}

// Consumer is a durable consumer and the stream it belongs to.
type Consumer struct {
	Stream string
	Config jetstream.ConsumerConfig
	// RandomName says that the name in Config is only the prefix of the real one. The rest is random and created with the consumer, so
	// that no node can name it: a node can have replies of JetStream sent as acks ($JS.ACK.<stream>.<consumer>.…).
	RandomName bool
}

// desiredStreams returns the streams of desired state. All store the same subjects; a transform gives each of them subjects of its own to
// publish on, except for the first, which needs none.
func desiredStreams(replicas int, layout subject.Layout) []jetstream.StreamConfig {
	var all []jetstream.StreamConfig
	for i, name := range layout.DesiredStreams() {
		cfg := jetstream.StreamConfig{
			Name: name, Description: "What the cloud wants on each node, one message per object",
			Subjects: []string{subject.PartitionSubjects(i)}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
			MaxMsgsPerSubject: 1, MaxMsgSize: MaxMessage, MaxConsumers: maxConsumers, Duplicates: dedupeWindow, AllowDirect: true,
		}
		if i > 0 {
			cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: cfg.Subjects[0], Destination: subject.StoredSubjects}
		}
		all = append(all, cfg)
	}
	return all
}

// HubTopology is the topology of a hub. replicas is 3, or 1 where the hub is a single server.
func HubTopology(replicas int, layout subject.Layout) Topology {
	return Topology{
		Streams: append(desiredStreams(replicas, layout), []jetstream.StreamConfig{
			{
				Name: subject.ReportStream, Description: "The last unhandled report of each object of each node",
				Subjects: []string{string(subject.Report) + ".>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: MaxMessage, Duplicates: dedupeWindow,
			},
			{
				Name: subject.EventStream, Description: "Kubernetes events of the nodes, not yet handled",
				Subjects: []string{string(subject.Event) + ".>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: MiB, MaxAge: eventAge, MaxBytes: eventBytes, Duplicates: dedupeWindow,
			},
			{
				Name: subject.PartStream, Description: "Payloads of large reports, in parts, until the reports are handled",
				Subjects: []string{subject.PartPrefix + ">"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: MiB, MaxAge: partAge, MaxBytes: partBytes, Duplicates: dedupeWindow, AllowDirect: true,
			},
			{
				Name: subject.DeadLetterStream, Description: "Messages that can never be handled, with the reason",
				Subjects: []string{subject.DeadLetterPrefix + ">"}, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxAge: deadLetterMaxAge, MaxBytes: deadLetterMaxBytes, MaxMsgSize: 2 * MaxMessage, Duplicates: dedupeWindow, AllowDirect: true,
			},
			{
				Name: subject.TelemetryStream, Description: "Samples of the nodes' devices",
				Subjects: []string{subject.TelemetryPrefix + ">"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgSize: MiB, MaxAge: telemetryAge, MaxBytes: telemetryBytes, Discard: jetstream.DiscardOld, Duplicates: dedupeWindow, AllowDirect: true,
				AllowAtomicPublish: true,
			},
			{
				Name: subject.MessagesStream, Description: "Messages of the nodes' MQTT apps",
				Subjects: []string{subject.MessagesPrefix + ">"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgSize: MiB, MaxAge: messagesAge, MaxBytes: messagesBytes, Discard: jetstream.DiscardOld, Duplicates: dedupeWindow, AllowDirect: true,
				AllowAtomicPublish: true,
			},
		}...),
		Consumers: []Consumer{
			{Stream: subject.ReportStream, Config: workQueueConsumer(cloudConsumer, replicas, ReportWindow, reportAckWait), RandomName: true},
			{Stream: subject.EventStream, Config: workQueueConsumer(cloudConsumer, replicas, EventWindow, reportAckWait), RandomName: true},
		},
		Buckets: []jetstream.KeyValueConfig{
			{Bucket: subject.MembersBucket, Description: "Live cloudcores", Storage: jetstream.MemoryStorage, Replicas: replicas, TTL: memberTTL},
			{Bucket: subject.RegistryBucket, Description: "What outlives every cloudcore", Storage: jetstream.FileStorage, Replicas: replicas},
		},
	}
}

// memberTTL is how long a cloudcore that stopped refreshing its entry stays listed; its peers decide by age, far sooner.
const memberTTL = 10 * time.Second

// LeafTopology is the topology of a node's own JetStream, except for the store's bucket, which leaf/store creates.
func LeafTopology() Topology {
	outbox := func(name string, plane subject.Plane, bytes int64) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: name, Description: "Waits for the link: " + string(plane) + "s", Subjects: []string{subject.OutboxPrefix + string(plane) + ".>"},
			Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: 1,
			MaxMsgsPerSubject: 1, MaxMsgSize: MaxMessage, MaxBytes: bytes, Discard: jetstream.DiscardOld,
		}
	}
	return Topology{
		Streams: []jetstream.StreamConfig{
			outbox(subject.OutboxStream, subject.Report, outboxBytes),
			outbox(subject.OutboxEventsStream, subject.Event, outboxEventBytes),
		},
		Consumers: []Consumer{
			{Stream: subject.OutboxStream, Config: workQueueConsumer(PumpConsumer, 1, PumpWindow, ackWait)},
			{Stream: subject.OutboxEventsStream, Config: workQueueConsumer(PumpConsumer, 1, PumpWindow, ackWait)},
		},
	}
}

func workQueueConsumer(name string, replicas, window int, wait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxAckPending: window, MaxDeliver: -1, Replicas: replicas,
	}
}

// Ensure creates and updates the server's streams, buckets and consumers to match the topology. It may be repeated, also by several
// processes at once. It deletes only one thing: a consumer of an older version that a consumer with a random name replaces.
func Ensure(ctx context.Context, js jetstream.JetStream, t Topology) error {
	for _, cfg := range t.Streams {
		err := RetryUnanswered(ctx, func(ctx context.Context) error {
			_, err := js.CreateOrUpdateStream(ctx, cfg)
			return err
		})
		if err != nil {
			return fmt.Errorf("ensure stream %s: %w", cfg.Name, err)
		}
	}
	for _, c := range t.Consumers {
		if err := ensureConsumer(ctx, js, c); err != nil {
			return fmt.Errorf("ensure consumer %s of stream %s: %w", c.Config.Durable, c.Stream, err)
		}
	}
	for _, cfg := range t.Buckets {
		err := RetryUnanswered(ctx, func(ctx context.Context) error {
			_, err := js.CreateOrUpdateKeyValue(ctx, cfg)
			return err
		})
		if err != nil {
			return fmt.Errorf("ensure bucket %s: %w", cfg.Bucket, err)
		}
	}
	return nil
}

func ensureConsumer(ctx context.Context, js jetstream.JetStream, c Consumer) error {
	if c.RandomName {
		return ensureSharedConsumer(ctx, js, c)
	}
	return RetryUnanswered(ctx, func(ctx context.Context) error {
		_, err := js.CreateOrUpdateConsumer(ctx, c.Stream, c.Config)
		return err
	})
}

// A request of RetryUnanswered waits for its answer at first for answerTimeout, and for ensureTimeout when it is repeated. When two processes
// create the same stream at the same moment, the server (2.15.2) creates it and answers neither; it answers a repeated request at once. A
// server that stops hands its leaderships over, and the requests that it had accepted are never answered.
const (
	answerTimeout = 500 * time.Millisecond
	ensureTimeout = time.Second
)

// RetryUnanswered repeats an unanswered request until ctx ends.
func RetryUnanswered(ctx context.Context, request func(context.Context) error) error {
	for timeout := answerTimeout; ; timeout = ensureTimeout {
		rctx, cancel := context.WithTimeout(ctx, timeout)
		err := request(rctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// NodeConsumer is the consumer that delivers one node's messages after sequence. It lives in the memory of one server: the cursor at the
// edge is authoritative, so losing the consumer costs one attach. 1,000 of them take 75 MB; a replicated one would cost a Raft group each.
func NodeConsumer(name, filter string, sequence uint64, window int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, Description: "Delivers the desired state of one node", FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: window, MaxDeliver: -1,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: sequence + 1,
		Replicas: 1, MemoryStorage: true, InactiveThreshold: nodeInactiveThreshold,
	}
}

// MetadataAwaits is the metadata key that marks a node's consumer as incomplete: when it was created, the node lacked payloads of messages
// before its start. So its acks do not prove that everything up to them is on the node's disk; the node's cursor does.
const MetadataAwaits = "frond-awaits"

// MetadataAttach is the metadata key of a random text, so that no attach mistakes the consumer of another attach for its own.
const MetadataAttach = "frond-attach"

// nodeInactiveThreshold is how long the consumer of a node that does not pull is kept; the node then attaches anew anyway.
const nodeInactiveThreshold = time.Hour

// IsNotFound reports whether the server's error says that a stream, consumer or message does not exist.
func IsNotFound(err error) bool {
	return errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
}
