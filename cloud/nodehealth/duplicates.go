package nodehealth

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// probeSpacing is the minimum time between two probes of one node.
	probeSpacing = 2 * time.Second
	// fenceRenewal is how often the agents of a node with a fenced one are probed again, well within
	// link.FenceDuration.
	fenceRenewal = 15 * time.Second
	// duplicateEventInterval is the minimum time between two events about the same problem.
	duplicateEventInterval = 10 * time.Minute
	// maxProbes bounds the probes of one node whose answers are remembered.
	maxProbes = 4
	// maxAnswers bounds the instances whose answers to one probe are remembered, and maxNameLength the length of an
	// instance name and of a probe id: they are random texts of ours, and a stolen gateway may send anything.
	maxAnswers, maxNameLength = 8, 64
	// maxFenced bounds the fenced instances that are remembered of one node; if there are more, all are dropped.
	maxFenced = 8
)

// DuplicateDetector detects two agents with one identity: a gateway whose disk was copied. Each process of an agent has
// a random instance. A node is probed at each attach and when its heartbeats come from another instance than the last;
// each agent answers with a heartbeat that repeats the probe's id. Two answers to one probe prove two living agents; a
// gateway that was restarted gives one, however quick the restart was. Each replica receives the answers, the owner acts.
type DuplicateDetector struct {
	owns func(node string) bool
	// commands includes the request of all reports: what an agent reported before it was fenced must not stand.
	commands    NodeCommands
	recordEvent func(node, reason, message string)
	// newProbeID returns a random text.
	newProbeID  func() string
	log         *zap.Logger
	fencedTotal prometheus.Counter

	mu    sync.Mutex
	nodes map[string]*nodeAgents // guarded by mu
}

// nodeAgents is the state of one node's agents; guarded by DuplicateDetector.mu.
type nodeAgents struct {
	lastInstance string // the instance of the last heartbeat, fenced ones left out
	probedAt     time.Time
	reportedAt   time.Time
	fenced       map[string]bool                      // the instances that have reported that they are fenced
	answers      map[string]map[string]wire.Heartbeat // by probe and instance
	probeOrder   []string                             // of the probes
}

// NodeCommands sends commands to a node; none of its functions blocks.
type NodeCommands struct {
	// SendProbe asks all agents of the node to answer with a heartbeat that repeats the probe's id.
	SendProbe func(node, id string) error
	// FenceAgent fences one instance of the node's agents.
	FenceAgent func(node, instance string) error
	// RequestReports asks the node to report everything.
	RequestReports func(node string) error
}

// NewDuplicateDetector creates the detector. owns reports whether this replica owns a node; warn writes an event on its
// Node and must not block; newProbeID returns a random text.
func NewDuplicateDetector(owns func(string) bool, commands NodeCommands, warn func(node, reason, message string),
	newProbeID func() string, metrics prometheus.Registerer, log *zap.Logger,
) *DuplicateDetector {
	return &DuplicateDetector{
		owns: owns, commands: commands, recordEvent: warn, newProbeID: newProbeID, log: log, nodes: map[string]*nodeAgents{},
		fencedTotal: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Namespace: "frond", Name: "duplicate_nodes_total", Help: "Agents fenced, or kept so, as another one of the same identity was there first.",
		}),
	}
}

// ProbeAttached probes a node that has attached. It does not block.
func (w *DuplicateDetector) ProbeAttached(node, instance string, now time.Time) {
	if instance == "" {
		return // an agent of an older version
	}
	w.mu.Lock()
	due := w.agentsOf(node).probeDue(now, probeSpacing)
	w.mu.Unlock()
	w.probeNode(node, due)
}

// ObserveHeartbeat processes a heartbeat and reports whether it is valid for the node: that of a fenced agent is not.
// It does not block.
func (w *DuplicateDetector) ObserveHeartbeat(node string, beat wire.Heartbeat, now time.Time) bool {
	if beat.Instance == "" || len(beat.Instance) > maxNameLength || len(beat.Probe) > maxNameLength {
		return !beat.Fenced
	}
	w.mu.Lock()
	a := w.agentsOf(node)
	rivals := a.recordAnswer(beat)
	if !beat.Fenced {
		delete(a.fenced, beat.Instance)
	}
	ask, again := false, false
	switch {
	case beat.Fenced:
		ask = w.owns(node) && a.probeDue(now, fenceRenewal)
		again = w.owns(node) && a.markFenced(beat.Instance) // from here on it reports nothing
	case a.lastInstance != beat.Instance:
		ask = a.lastInstance != "" && w.owns(node) && a.probeDue(now, probeSpacing)
		a.lastInstance = beat.Instance
	}
	alarm := len(rivals) > 1 && w.owns(node) && now.Sub(a.reportedAt) >= duplicateEventInterval
	if alarm {
		a.reportedAt = now
	}
	w.mu.Unlock()
	w.probeNode(node, ask)
	if again {
		w.rereportNode(node)
	}
	if len(rivals) > 1 && w.owns(node) {
		w.fenceDuplicates(node, rivals, alarm)
	}
	return !beat.Fenced
}

// probeNode sends a probe to a node.
func (w *DuplicateDetector) probeNode(node string, ask bool) {
	if !ask {
		return
	}
	if err := w.commands.SendProbe(node, w.newProbeID()); err != nil {
		w.log.Warn("node not asked who is there", zap.String("node", node), zap.Error(err))
	}
}

// fenceDuplicates fences all agents but the survivor.
func (w *DuplicateDetector) fenceDuplicates(node string, rivals map[string]wire.Heartbeat, alarm bool) {
	first := pickSurvivor(rivals)
	if alarm {
		w.log.Error("two agents have one node's identity; the later one is fenced", zap.String("node", node),
			zap.String("stays", first), zap.Int("agents", len(rivals)))
		w.recordEvent(node, names.EventDuplicateNode, "Two agents are connected as this node. The one that came later gets nothing and reports nothing. Was a gateway's disk copied?")
	}
	news := false
	for instance, beat := range rivals {
		if instance == first {
			continue
		}
		news = news || !beat.Fenced
		w.fencedTotal.Inc()
		if err := w.commands.FenceAgent(node, instance); err != nil {
			w.log.Warn("agent not fenced", zap.String("node", node), zap.Error(err))
		}
	}
	if news { // and once more when the agent reports that it is fenced, which it may not live to do
		w.rereportNode(node)
	}
}

// rereportNode asks a node to report again.
func (w *DuplicateDetector) rereportNode(node string) {
	if err := w.commands.RequestReports(node); err != nil {
		w.log.Warn("node not asked to report again", zap.String("node", node), zap.Error(err))
	}
}

// pickSurvivor returns the instance that stays: one that is not fenced, and of these the one attached for longest.
func pickSurvivor(rivals map[string]wire.Heartbeat) string {
	best := ""
	for instance, beat := range rivals {
		other, found := rivals[best]
		switch {
		case !found, other.Fenced && !beat.Fenced:
			best = instance
		case other.Fenced != beat.Fenced:
		case beat.Since > other.Since, beat.Since == other.Since && instance < best:
			best = instance
		}
	}
	return best
}

// agentsOf returns the state of a node's agents. The caller holds mu.
func (w *DuplicateDetector) agentsOf(node string) *nodeAgents {
	a := w.nodes[node]
	if a == nil {
		a = &nodeAgents{answers: map[string]map[string]wire.Heartbeat{}}
		w.nodes[node] = a
	}
	return a
}

// probeDue reports whether a probe is due, and records that it is sent.
func (a *nodeAgents) probeDue(now time.Time, spacing time.Duration) bool {
	if now.Sub(a.probedAt) < spacing {
		return false
	}
	a.probedAt = now
	return true
}

// markFenced records that an instance is fenced and reports whether that is new.
func (a *nodeAgents) markFenced(instance string) bool {
	if a.fenced[instance] {
		return false
	}
	if a.fenced == nil || len(a.fenced) >= maxFenced {
		a.fenced = map[string]bool{}
	}
	a.fenced[instance] = true
	return true
}

// recordAnswer records an answer and returns all answers to the same probe. It returns none for an answer beyond the limits.
func (a *nodeAgents) recordAnswer(beat wire.Heartbeat) map[string]wire.Heartbeat {
	if beat.Probe == "" {
		return nil
	}
	given := a.answers[beat.Probe]
	if given == nil {
		given = map[string]wire.Heartbeat{}
		a.answers[beat.Probe] = given
		if a.probeOrder = append(a.probeOrder, beat.Probe); len(a.probeOrder) > maxProbes {
			delete(a.answers, a.probeOrder[0])
			a.probeOrder = a.probeOrder[1:]
		}
	}
	if _, known := given[beat.Instance]; !known && len(given) >= maxAnswers {
		return nil
	}
	given[beat.Instance] = wire.Heartbeat{Fenced: beat.Fenced, Since: beat.Since}
	return maps.Clone(given)
}
