package cloud

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// auditStrikes is how many beats with a census must differ, one after the other, before a node is told: what is on its
	// way may differ once.
	auditStrikes = 2
	// auditFirst and auditMost are how long a node that was told is left alone: a difference that stays, such as an object
	// that this node cannot read, must not cost a full attach every 20 s.
	auditFirst = 30 * time.Second
	auditMost  = 6 * time.Hour
)

// census is what the owner of a node knows of it; desired.Engine is one.
type census interface {
	Census(node string, except []wire.Key) (census wire.Census, upTo uint64, known bool)
	Reload(nodes ...string)
}

// audit compares what each owned node has with what the stream holds for it, and makes a node that differs attach for
// everything. It heals what no protocol foresees: a disk image from last week, a hub restored from a backup, a store
// changed by hand. What it remembers is a hint; another replica begins anew.
type audit struct {
	owns   func(node string) bool
	truth  census
	resync func(node string) error
	tell   func(node, reason, message string)
	log    *zap.Logger

	compared, differed prometheus.Counter

	mu    sync.Mutex
	nodes map[string]*suspicion // guarded by mu; only nodes that differ or did
}

// suspicion is a node that differs.
type suspicion struct {
	strikes int
	quiet   time.Time     // until then it is not told again
	wait    time.Duration // how long it is left alone the next time
}

func newAudit(owns func(string) bool, truth census, resync func(string) error, tell func(node, reason, message string), metrics prometheus.Registerer, log *zap.Logger) *audit {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: "audit", Name: name, Help: help})
	}
	a := &audit{
		owns: owns, truth: truth, resync: resync, tell: tell, log: log, nodes: map[string]*suspicion{},
		compared: counter("compared_total", "Heartbeats whose census was compared with what the stream holds."),
		differed: counter("differences_total", "Nodes whose objects differed from the stream twice in a row, and that were asked for a full resync."),
	}
	metrics.MustRegister(a.compared, a.differed)
	return a
}

// beat judges a heartbeat; epoch is the stream's present life. It does not block.
func (a *audit) beat(node string, beat wire.Beat, epoch string, now time.Time) {
	if beat.Census == nil || beat.StreamEpoch != epoch || !a.owns(node) {
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
	want, upTo, known := a.truth.Census(node, deleted)
	if !known || beat.Sequence < upTo {
		return
	}
	a.compared.Inc()
	if want == *beat.Census {
		a.agree(node, now)
		return
	}
	if a.strike(node, now) {
		a.differed.Inc()
		a.log.Warn("node holds other objects than the cloud, full resync requested", zap.String("node", node),
			zap.Int("objects", beat.Census.Objects), zap.Int("wanted", want.Objects), zap.Uint64("seq", upTo))
		a.tell(node, "AuditDifference", "The gateway's store differs from what the cloud holds for it; it is compared object by object and repaired.")
		if err := a.resync(node); err != nil {
			a.log.Warn("node not told", zap.String("node", node), zap.Error(err))
		}
		return
	}
	a.truth.Reload(node) // it may be the owner who is mistaken
}

// agree notes that a node is as it should be. What it is forgiven, it is slowly.
func (a *audit) agree(node string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	if s == nil {
		return
	}
	s.strikes = 0
	if now.After(s.quiet) {
		delete(a.nodes, node)
	}
}

// strike notes a difference and reports whether the node is to be told.
func (a *audit) strike(node string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	if s == nil {
		s = &suspicion{wait: auditFirst}
		a.nodes[node] = s
	}
	s.strikes++
	if s.strikes < auditStrikes || now.Before(s.quiet) {
		return false
	}
	s.strikes = 0
	s.quiet = now.Add(s.wait)
	s.wait = min(2*s.wait, auditMost)
	return true
}
