package desired

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/deletionguard"
	"github.com/frond-edge/frond/controllers/desired/grants"
	"github.com/frond-edge/frond/controllers/desired/topology"
)

// Publisher writes to the stream of desired state. Calls may be concurrent; the engine keeps the order per node and key.
type Publisher interface {
	// Publish stores the message as the last of its subject if the subject's last message has sequence expectLast (0:
	// the subject is empty). Otherwise the error wraps wire.ErrConflict. For a message that can never be stored the
	// error wraps wire.ErrPermanent.
	Publish(ctx context.Context, m wire.Message, expectLast uint64) (sequence uint64, err error)
	// Held returns the last message of each of the node's subjects, without objects. The caller owns the map.
	Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error)
	// Newer reports whether the stream holds a message for the node after a sequence. It may miss a message that was
	// stored just now.
	Newer(ctx context.Context, node string, sequence uint64) (bool, error)
	// Purge removes the messages of a subject up to and including a sequence.
	Purge(ctx context.Context, node string, key wire.Key, upTo uint64) error
}

// Ownership reports which nodes this replica owns.
type Ownership = controllers.Ownership

// Guard configures which deletions are held back.
type Guard = deletionguard.Guard

// Restore says that the Kubernetes API went back in time.
type Restore = deletionguard.Restore

// Config configures an Engine. The zero value works.
type Config struct {
	// ClusterEpoch identifies the Kubernetes history; it is set on each message.
	ClusterEpoch string
	// Workers is the number of concurrent publishes of changes, and of those that repair; 0: 64. One publish is a round
	// trip of about 1 ms to a quorum, so 64 keep it busy.
	Workers int
	// TombstoneAge is the minimum age of a tombstone before it is purged, whoever has acked it. Until then the object's
	// subject is not empty, so that a writer that was stopped between its decision and its write is refused; 0: 15 minutes.
	TombstoneAge time.Duration
	// CompareEvery is the interval between two comparisons of the stream's content for a node with memory; 0: 5 minutes.
	CompareEvery time.Duration
	// Grace is how long all objects are kept for a node whose Node object is gone; 0: 10 minutes.
	Grace time.Duration
	// NoServices omits services and endpoint slices, for gateways without service addresses and service environment variables.
	NoServices bool
	// Guard holds back suspicious deletions.
	Guard Guard
	// Restore says that the Kubernetes history was replaced a short time ago.
	Restore Restore
	// VerifiedSince reports whether the continuity of the Kubernetes history was verified after a moment, and triggers
	// a check if not. No pod that vanished is removed from its node before that; nil disables the check. It must
	// neither block nor call the engine.
	VerifiedSince func(after time.Time) bool
	// Scopes returns the scopes that components at a node requested and were granted; nil: no node has scopes.
	Scopes grants.Source
	// ServicesByNeed reports whether a node requests the scopes on Services and EndpointSlices that it wants, so that it need not
	// be given all of them; nil: no node does. It must neither block nor call the engine.
	ServicesByNeed func(node string) bool
	// Groups knows which NodeGroup a node is in, for Services whose endpoints stay in a group; nil: none is in one. It must neither
	// block nor call the engine.
	Groups topology.Groups
	// Protected are the namespaces whose objects are never published. What was published from them is removed at once.
	Protected controllers.ProtectedNamespaces
	// OnWithheld is called for each object in a protected namespace that an owned node needs, once while the node needs
	// it. The referrer is the object at that node that refers to it (the object itself if it is bound to the node).
	// nil: no call. It must neither block nor call the engine.
	OnWithheld func(node string, object, referrer wire.Key)
	// Probe requests a resource from the apiserver, by a list of one object. A status error says that the resource is
	// not served (404) or may not be read (403). nil: kinds that not every apiserver serves are not synced, and the
	// nodes keep what they have of them.
	Probe func(ctx context.Context, resource schema.GroupVersionResource) error
	// ProbeEvery is the interval between two probes; 0: 1 minute.
	ProbeEvery time.Duration
	// OnHold is called with the hold on an owned node's deletions, nil for none: at the first evaluation and at each
	// change. nil: no call. It must neither block nor call the engine.
	OnHold func(node string, hold *wire.Hold)
	// Metrics registers the engine's metrics; nil: they are kept and not exposed.
	Metrics prometheus.Registerer
}

const (
	defaultWorkers = 64
	// A Node deleted by mistake, whose pods are collected after 40 s, can be restored before gateways stop anything.
	defaultGrace = 10 * time.Minute
	// The hub drops a client that answers no ping after 6 minutes at most, and a publishing client carries nothing over
	// to its next connection. A writer that was stopped for longer than this age is therefore refused by the hub.
	defaultTombstoneAge = 15 * time.Minute
	defaultCompareEvery = 5 * time.Minute
	// A kind appears when an apiserver is upgraded or gets a feature gate: rarely, and then an operator waits for it.
	defaultProbeEvery = time.Minute
)

func (c Config) withDefaults() Config {
	if c.Workers == 0 {
		c.Workers = defaultWorkers
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	if c.TombstoneAge == 0 {
		c.TombstoneAge = defaultTombstoneAge
	}
	if c.CompareEvery == 0 {
		c.CompareEvery = defaultCompareEvery
	}
	if c.ProbeEvery == 0 {
		c.ProbeEvery = defaultProbeEvery
	}
	if c.Guard.Settle == 0 {
		c.Guard.Settle = deletionguard.DefaultSettle
	}
	return c
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var faults []error
	if c.Workers < 0 {
		faults = append(faults, errors.New("workers: negative"))
	}
	if c.Grace < 0 || c.TombstoneAge < 0 || c.CompareEvery < 0 || c.ProbeEvery < 0 {
		faults = append(faults, errors.New("grace, tombstone age, compare every or probe every: negative"))
	}
	return errors.Join(append(faults, c.Guard.Validate())...)
}
