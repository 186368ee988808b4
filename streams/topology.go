package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The names of what Frond keeps in JetStream. On the hub there is one partition as yet; the number is part of the name
// so that more can be added without renaming this one.
const (
	HubDomain     = "hub"
	DesiredStream = "DESIRED-0"
	ReportStream  = "REPORT-0"
	EventStream   = "EVENT-0"
	// PartStream holds the payloads of large reports, in parts, until the reports are handled.
	PartStream       = "PART-0"
	DeadLetterStream = "DEAD"
	MembersBucket    = "members"
	// RegistryBucket holds what must outlive every cloudcore: how far the Kubernetes history had come, and what nodes want.
	RegistryBucket = "registry"

	OutboxStream       = "OUTBOX"
	OutboxEventsStream = "OUTBOX-EVENTS"

	// cloudConsumer begins the name of the durable consumer that all cloudcores share on REPORT-0, and of that on EVENT-0.
	cloudConsumer = "cloudcore"
	// pumpConsumer is the durable consumer of the pump on each outbox stream.
	pumpConsumer = "pump"
)

const (
	mib = 1 << 20

	// maxMessage bounds one stored message: the apiserver refuses objects above 3 MiB, etcd above 1.5 MiB.
	maxMessage = 4 * mib
	// dedupeWindow is how long the server recognises a repeated message id: longer than any retry of one publish.
	dedupeWindow = 2 * time.Minute
	// maxConsumers is explicit because the server's default of 1,000 is far below the nodes of one partition.
	maxConsumers = 200_000
	// deadLetterMaxAge and deadLetterMaxBytes bound the dead letters: evidence for people, not state.
	deadLetterMaxAge   = 14 * 24 * time.Hour
	deadLetterMaxBytes = 256 * mib
	// eventAge is how long an event waits for a cloudcore; Kubernetes itself keeps events for an hour.
	eventAge = 24 * time.Hour
	// eventBytes and outboxEventBytes bound telemetry; the oldest goes first.
	eventBytes       = 512 * mib
	outboxEventBytes = 8 * mib
	// partAge and partBytes bound parts whose report never came, or waits for so long that its node is asked for it again.
	partAge   = 24 * time.Hour
	partBytes = 256 * mib
	// outboxBytes bounds the reports of one node: last values only, so it is a guard against a defect, not a window.
	outboxBytes = 256 * mib
	// ackWait is how long a message that was delivered may be unacked before it is delivered again: a slow disk.
	ackWait = 30 * time.Second
	// reportAckWait is how long the reports in a dead cloudcore's hands wait. A living one says that it works on them.
	reportAckWait = 10 * time.Second
	// reportWindow and eventWindow are how many reports may be in hands, or wait to be tried again, at a time. A quarter of
	// it may be refused ones in each cloudcore, so that they never take all of it.
	reportWindow = 4096
	eventWindow  = 1024
)

// Topology is what one JetStream must hold.
type Topology struct {
	Streams   []jetstream.StreamConfig
	Consumers []Consumer
	Buckets   []jetstream.KeyValueConfig
}

// Consumer is a durable consumer and the stream it belongs to.
type Consumer struct {
	Stream string
	Config jetstream.ConsumerConfig
	// RandomName says that the name in Config is only how the real one begins. The rest is random and made with the consumer, so
	// that no node can name it: a node can have answers of JetStream sent as acks ($JS.ACK.<stream>.<consumer>.…).
	RandomName bool
}

// HubTopology is the topology of the hub. replicas is 3, or 1 where the hub is a single server.
func HubTopology(replicas int) Topology {
	return Topology{
		Streams: []jetstream.StreamConfig{
			{
				Name: DesiredStream, Description: "What the cloud wants on each node, one message per object",
				Subjects: []string{string(Desired) + ".>"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage, MaxConsumers: maxConsumers, Duplicates: dedupeWindow, AllowDirect: true,
			},
			{
				Name: ReportStream, Description: "The last unhandled report of each object of each node",
				Subjects: []string{string(Report) + ".>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage, Duplicates: dedupeWindow,
			},
			{
				Name: EventStream, Description: "Kubernetes events of the nodes, not yet handled",
				Subjects: []string{string(Event) + ".>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: mib, MaxAge: eventAge, MaxBytes: eventBytes, Duplicates: dedupeWindow,
			},
			{
				Name: PartStream, Description: "Payloads of large reports, in parts, until the reports are handled",
				Subjects: []string{partPrefix + ">"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxMsgsPerSubject: 1, MaxMsgSize: mib, MaxAge: partAge, MaxBytes: partBytes, Duplicates: dedupeWindow, AllowDirect: true,
			},
			{
				Name: DeadLetterStream, Description: "Messages that can never be handled, with the reason",
				Subjects: []string{deadLetterPrefix + ">"}, Storage: jetstream.FileStorage, Replicas: replicas,
				MaxAge: deadLetterMaxAge, MaxBytes: deadLetterMaxBytes, MaxMsgSize: 2 * maxMessage, Duplicates: dedupeWindow, AllowDirect: true,
			},
		},
		Consumers: []Consumer{
			{Stream: ReportStream, Config: workQueueConsumer(cloudConsumer, replicas, reportWindow, reportAckWait), RandomName: true},
			{Stream: EventStream, Config: workQueueConsumer(cloudConsumer, replicas, eventWindow, reportAckWait), RandomName: true},
		},
		Buckets: []jetstream.KeyValueConfig{
			{Bucket: MembersBucket, Description: "Live cloudcores", Storage: jetstream.MemoryStorage, Replicas: replicas, TTL: memberTTL},
			{Bucket: RegistryBucket, Description: "What outlives every cloudcore", Storage: jetstream.FileStorage, Replicas: replicas},
		},
	}
}

// memberTTL is how long a cloudcore that stopped refreshing its entry is listed; its peers judge by age, far sooner.
const memberTTL = 10 * time.Second

// LeafTopology is the topology of a node's own JetStream, apart from the store's bucket, which leaf/store makes.
func LeafTopology() Topology {
	outbox := func(name string, plane Plane, bytes int64) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: name, Description: "Waits for the link: " + string(plane) + "s", Subjects: []string{outboxPrefix + string(plane) + ".>"},
			Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: 1,
			MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage, MaxBytes: bytes, Discard: jetstream.DiscardOld,
		}
	}
	return Topology{
		Streams: []jetstream.StreamConfig{
			outbox(OutboxStream, Report, outboxBytes),
			outbox(OutboxEventsStream, Event, outboxEventBytes),
		},
		Consumers: []Consumer{
			{Stream: OutboxStream, Config: workQueueConsumer(pumpConsumer, 1, pumpWindow, ackWait)},
			{Stream: OutboxEventsStream, Config: workQueueConsumer(pumpConsumer, 1, pumpWindow, ackWait)},
		},
	}
}

func workQueueConsumer(name string, replicas, window int, wait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxAckPending: window, MaxDeliver: -1, Replicas: replicas,
	}
}

// Ensure makes the server hold the topology and may be run again, by several processes at once. It creates and updates; it
// deletes nothing but a consumer of an older version in the place of a hidden one.
func Ensure(ctx context.Context, js jetstream.JetStream, t Topology) error {
	for _, cfg := range t.Streams {
		err := retryUnanswered(ctx, func(ctx context.Context) error {
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
		err := retryUnanswered(ctx, func(ctx context.Context) error {
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
	return retryUnanswered(ctx, func(ctx context.Context) error {
		_, err := js.CreateOrUpdateConsumer(ctx, c.Stream, c.Config)
		return err
	})
}

// ensureTimeout bounds one request of Ensure. When two processes create the same stream at the same moment, the server
// (2.15.2) makes it and answers neither; asked again, it answers at once.
const ensureTimeout = time.Second

// retryUnanswered repeats a request that nobody answered until ctx ends.
func retryUnanswered(ctx context.Context, request func(context.Context) error) error {
	for {
		rctx, cancel := context.WithTimeout(ctx, ensureTimeout)
		err := request(rctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

// nodeConsumer is the consumer that delivers to one node what comes after sequence. It lives in the memory of one
// server: the truth is the cursor at the edge, so losing it costs one attach. 1,000 of them take 75 MB; a
// replicated one would cost a Raft group each.
func nodeConsumer(name, filter string, sequence uint64, window int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, Description: "Delivers the desired state of one node", FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: window, MaxDeliver: -1,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: sequence + 1,
		Replicas: 1, MemoryStorage: true, InactiveThreshold: nodeInactiveThreshold,
	}
}

// MetadataAwaits is the key of a mark on a node's consumer: when it was made, the node lacked payloads of messages before its
// start, so its acks alone do not say that everything up to them is on the node's disk; the node's cursor does.
const MetadataAwaits = "frond-awaits"

// metadataAttach is the key of a random text, so that no attach takes the consumer of another one for its own.
const metadataAttach = "frond-attach"

// nodeInactiveThreshold is how long the consumer of a node that does not pull is kept; afterwards it attaches anew anyway.
const nodeInactiveThreshold = time.Hour

// isNotFound tells whether the server says that a stream, consumer or message does not exist.
func isNotFound(err error) bool {
	return errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
}
