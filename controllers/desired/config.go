package desired

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Publisher writes into the stream of desired state. Calls may be concurrent; the engine keeps order per node and key.
type Publisher interface {
	// Publish stores the message as the last of its subject, if the stream's last one has sequence expectLast (0: there
	// is none). Otherwise the error wraps wire.ErrConflict. A message that can never be stored: wire.ErrPermanent.
	Publish(ctx context.Context, m wire.Message, expectLast uint64) (sequence uint64, err error)
	// Held returns the last message of each of the node's subjects, without objects. The caller owns the map.
	Held(ctx context.Context, node string) (map[wire.Key]wire.Message, error)
	// Newer reports whether the stream holds a message for the node after a sequence. It may overlook what came just now.
	Newer(ctx context.Context, node string, sequence uint64) (bool, error)
	// Purge removes the messages of a subject up to and including a sequence.
	Purge(ctx context.Context, node string, key wire.Key, upTo uint64) error
}

// Ownership says which nodes this replica serves. Calls may be concurrent and must not block.
type Ownership interface {
	// Term is not 0 if this replica is the node's owner, and it is another number after each break of that: what was known of
	// the node before may be old.
	Term(node string) uint64
	// Changed returns a channel that is closed at the next change of any answer of Term after this call.
	Changed() <-chan struct{}
	// Fresh reports whether this replica has been heard of so lately that no other can have taken its nodes over.
	LeaseValid() bool
}

// Config of an Engine. The zero value works.
type Config struct {
	// ClusterEpoch is the id of the Kubernetes history, put on each message.
	ClusterEpoch string
	// Workers publish at a time; 0: 64. One publish is a round trip of about 1 ms to a quorum, so 64 keep it busy.
	Workers int
	// TombstoneAge is how long a tombstone stays at least, whoever has acked it: so long a writer that was stopped between its
	// decision and its write is refused, as the object's subject is not empty; 0: 15 minutes.
	TombstoneAge time.Duration
	// CompareEvery is how often what the stream holds for a node is compared with memory; 0: 5 minutes.
	CompareEvery time.Duration
	// Grace is how long everything is kept for a node whose Node object is gone; 0: 10 minutes.
	Grace time.Duration
	// NoServices leaves out services and endpoint slices, for gateways without service addresses and their variables.
	NoServices bool
	// Guard holds back deletions that look like a mistake.
	Guard Guard
	// Restore says that the Kubernetes history is a new one since a short time.
	Restore Restore
	// VerifiedSince reports whether the Kubernetes history was seen to be unbroken after a moment, and sees to it that it soon will
	// be if not. No pod that vanished is taken from its node before; nil: nobody looks. It must neither block nor call the engine.
	VerifiedSince func(after time.Time) bool
	// Scopes says what components at the nodes asked for and were granted; nil: nobody asks.
	Scopes ScopeSource
	// Protected are the namespaces of which no object is published, and of which what was published is taken back at once.
	Protected controllers.ProtectedNamespaces
	// OnWithheld is told of each object in a protected namespace that an owned node needs, once while the node needs it, with what
	// there refers to it (the object itself where it is bound to the node); nil: nobody is told. It must neither block nor call
	// the engine.
	OnWithheld func(node string, object, referrer wire.Key)
	// Probe asks the apiserver for a resource, by a list of one object: a status error says that it is not served (404) or may not
	// be read (403). nil: kinds that not every apiserver serves are not followed, and what nodes have of them stays.
	Probe func(ctx context.Context, resource schema.GroupVersionResource) error
	// ProbeEvery is how often that is asked; 0: 1 minute.
	ProbeEvery time.Duration
	// OnHold is told what is held back for an owned node, nil for nothing, at its first look and at each change; nil: nobody is
	// told. It must neither block nor call the engine.
	OnHold func(node string, hold *wire.Hold)
	// Metrics registers the engine's metrics; nil: they are kept and not shown.
	Metrics prometheus.Registerer
}

const (
	defaultWorkers = 64
	// A Node deleted by mistake and its pods collected (after 40 s) can be put back before gateways stop anything.
	defaultGrace = 10 * time.Minute
	// The hub drops a client that answers no ping after 6 minutes at most, and a publishing client carries nothing over to its
	// next connection: a writer that was stopped for longer than this is refused by that.
	defaultTombstoneAge = 15 * time.Minute
	defaultCompareEvery = 5 * time.Minute
	// A kind appears when an apiserver is upgraded or gets a feature gate: rarely, and somebody waits for it then.
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
		c.Guard.Settle = defaultSettle
	}
	return c
}

// Validate joins all faults.
func (c Config) Validate() error {
	var faults []error
	if c.Workers < 0 {
		faults = append(faults, errors.New("workers: negative"))
	}
	if c.Grace < 0 || c.TombstoneAge < 0 || c.CompareEvery < 0 || c.ProbeEvery < 0 {
		faults = append(faults, errors.New("grace, tombstone age, compare every or probe every: negative"))
	}
	return errors.Join(append(faults, c.Guard.validate())...)
}

// CacheOptions are the options for the manager's cache that Engine reads: no managedFields in memory.
func CacheOptions() cache.Options {
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields()}
}

// Rules are the rights that cloudcore needs for this package: to read what may reach a node. It never writes. Scopes on other
// kinds need the right to list and watch these.
func Rules() []rbacv1.PolicyRule {
	rule := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
	}
	return []rbacv1.PolicyRule{
		rule("", "pods", "nodes", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes", "services"),
		rule("storage.k8s.io", "csinodes", "csidrivers", "volumeattachments"),
		rule("node.k8s.io", "runtimeclasses"),
		rule(certificatesGroup, trustBundlesResource, "podcertificaterequests"),
		rule(resourceGroup, claimsResource, "resourceslices"),
		rule("discovery.k8s.io", "endpointslices"),
		rule(rbacv1.GroupName, "clusterroles", "clusterrolebindings", "roles", "rolebindings"),
	}
}
