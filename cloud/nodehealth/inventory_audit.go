package nodehealth

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// auditThreshold is how many consecutive heartbeats with an inventory must differ before a node is told to resync:
	// messages in transit may cause one difference.
	auditThreshold = 2
	// auditBackoffMin and auditBackoffMax bound the pause after a node was told to resync: a lasting difference, such
	// as an object that this node cannot read, must not cost a full attach every 20 s.
	auditBackoffMin = 30 * time.Second
	auditBackoffMax = 6 * time.Hour
)

// InventorySource returns the inventory that the owner of a node expects; desired.Engine is one.
type InventorySource interface {
	// Inventory returns the inventory without some keys, up to which sequence it holds, and whether it is loaded.
	Inventory(node string, except []wire.Key) (census wire.Inventory, upTo uint64, known bool)
	// Resync reads the record of these nodes from the stream again.
	Resync(nodes ...string)
}

// InventoryAuditor compares the inventory of each owned node with what the stream holds for it, and makes a node that
// differs attach for a full resync. It repairs what no protocol covers: a disk image from last week, a hub restored
// from a backup, a store changed by hand. Its memory is a hint; another replica starts without it.
type InventoryAuditor struct {
	owns        func(node string) bool
	expected    InventorySource
	resync      func(node string) error
	recordEvent func(node, reason, message string)
	log         *zap.Logger

	compared, differed prometheus.Counter

	mu    sync.Mutex
	nodes map[string]*mismatchRecord // guarded by mu; only nodes that differ or did
}

// mismatchRecord is the state of a node that differs.
type mismatchRecord struct {
	mismatches int
	quietUntil time.Time     // it is not told again before this time
	backoff    time.Duration // the length of the next pause
}

// NewInventoryAuditor creates the auditor. owns reports whether this replica owns a node; resync makes a node attach for
// a full resync, and warn writes an event on its Node; neither blocks.
func NewInventoryAuditor(owns func(string) bool, expected InventorySource, resync func(string) error, warn func(node, reason, message string), metrics prometheus.Registerer, log *zap.Logger) *InventoryAuditor {
	counter := func(name, help string) prometheus.Counter {
		return promauto.With(metrics).NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: "audit", Name: name, Help: help})
	}
	return &InventoryAuditor{
		owns: owns, expected: expected, resync: resync, recordEvent: warn, log: log, nodes: map[string]*mismatchRecord{},
		compared: counter("compared_total", "Heartbeats whose census was compared with what the stream holds."),
		differed: counter("differences_total", "Nodes whose objects differed from the stream twice in a row, and that were asked for a full resync."),
	}
}

// CompareInventory compares the inventory of a heartbeat; epoch identifies the stream's present incarnation. It does not block.
func (a *InventoryAuditor) CompareInventory(node string, beat wire.Heartbeat, epoch string, now time.Time) {
	if beat.Inventory == nil || beat.StreamEpoch != epoch || !a.owns(node) {
		return
	}
	deleted := make([]wire.Key, 0, len(beat.Deleted))
	for _, text := range beat.Deleted {
		key, err := wire.ParseKey(text)
		if err != nil {
			return
		}
		deleted = append(deleted, key)
	}
	want, upTo, known := a.expected.Inventory(node, deleted)
	if !known || beat.Sequence < upTo {
		return
	}
	a.compared.Inc()
	if want == *beat.Inventory {
		a.recordMatch(node, now)
		return
	}
	if a.recordMismatch(node, now) {
		a.differed.Inc()
		a.log.Warn("node holds other objects than the cloud, full resync requested", zap.String("node", node),
			zap.Int("objects", beat.Inventory.Objects), zap.Int("wanted", want.Objects), zap.Uint64("seq", upTo))
		a.recordEvent(node, names.EventAuditDifference, "The gateway's store differs from what the cloud holds for it; it is compared object by object and repaired.")
		if err := a.resync(node); err != nil {
			a.log.Warn("node not told", zap.String("node", node), zap.Error(err))
		}
		return
	}
	a.expected.Resync(node) // the owner's own record may be wrong
}

// recordMatch records that a node's inventory matches. The backoff is dropped only after quietUntil.
func (a *InventoryAuditor) recordMatch(node string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	if s == nil {
		return
	}
	s.mismatches = 0
	if now.After(s.quietUntil) {
		delete(a.nodes, node)
	}
}

// recordMismatch records a difference and reports whether the node must be told to resync.
func (a *InventoryAuditor) recordMismatch(node string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	if s == nil {
		s = &mismatchRecord{backoff: auditBackoffMin}
		a.nodes[node] = s
	}
	s.mismatches++
	if s.mismatches < auditThreshold || now.Before(s.quietUntil) {
		return false
	}
	s.mismatches = 0
	s.quietUntil = now.Add(s.backoff)
	s.backoff = min(2*s.backoff, auditBackoffMax)
	return true
}
