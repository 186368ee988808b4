package cloud

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// askSpacing is the least time between two questions to one node which agents are there.
	askSpacing = 2 * time.Second
	// fenceRenewal is how often a fenced agent's neighbours are asked for again, well within streams.FenceFor.
	fenceRenewal = 15 * time.Second
	// twinAlarm is how often the same trouble is told.
	twinAlarm = 10 * time.Minute
	// questionsKept bounds the questions whose answers are remembered of one node.
	questionsKept = 4
	// answersKept bounds the instances whose answers to one question are remembered, and nameMost the length of an instance and of a
	// question: they are random words of ours, and a stolen gateway may say what it likes.
	answersKept, nameMost = 8, 64
	// fencedKept bounds the fenced instances that are remembered of one node; all are forgotten when there are more.
	fencedKept = 8
)

// twins finds two agents with one identity: a gateway whose disk was copied. Each process of an agent has a random instance.
// A node is asked which instances are there at each attach and when its heartbeats come from another instance than the
// last; each answers with a heartbeat that repeats the question. Two answers to one question prove two living agents; a
// gateway that was restarted gives one, however quick it was. Each replica hears the answers, the owner acts.
type twins struct {
	owns  func(node string) bool
	ask   func(node, question string) error
	fence func(node, instance string) error
	// again asks for all reports: what an agent has said before it was fenced must not stand.
	again func(node string) error
	tell  func(node, reason, message string)
	// question gives a random text.
	question func() string
	log      *zap.Logger
	found    prometheus.Counter

	mu    sync.Mutex
	nodes map[string]*agents // guarded by mu
}

// agents is what is known of one node's; guarded by twins.mu.
type agents struct {
	last    string // the instance heard last, fenced ones left out
	asked   time.Time
	told    time.Time
	fenced  map[string]bool                 // the instances that have said that they are
	answers map[string]map[string]wire.Beat // by question and instance
	order   []string                        // of the questions
}

func newTwins(owns func(string) bool, ask, fence func(node, text string) error, again func(node string) error, tell func(node, reason, message string),
	question func() string, metrics prometheus.Registerer, log *zap.Logger,
) *twins {
	w := &twins{
		owns: owns, ask: ask, fence: fence, again: again, tell: tell, question: question, log: log, nodes: map[string]*agents{},
		found: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "frond", Name: "duplicate_nodes_total", Help: "Agents fenced, or kept so, as another one of the same identity was there first.",
		}),
	}
	metrics.MustRegister(w.found)
	return w
}

// attached asks who is there. It does not block.
func (w *twins) attached(node, instance string, now time.Time) {
	if instance == "" {
		return // an agent of an older version
	}
	w.mu.Lock()
	due := w.of(node).due(now, askSpacing)
	w.mu.Unlock()
	w.wonder(node, due)
}

// hear takes a heartbeat and reports whether it speaks for the node: that of a fenced agent does not. It does not block.
func (w *twins) hear(node string, beat wire.Beat, now time.Time) bool {
	if beat.Instance == "" || len(beat.Instance) > nameMost || len(beat.Who) > nameMost {
		return !beat.Fenced
	}
	w.mu.Lock()
	a := w.of(node)
	rivals := a.answer(beat)
	if !beat.Fenced {
		delete(a.fenced, beat.Instance)
	}
	ask, again := false, false
	switch {
	case beat.Fenced:
		ask = w.owns(node) && a.due(now, fenceRenewal)
		again = w.owns(node) && a.falls(beat.Instance) // from here on it reports nothing
	case a.last != beat.Instance:
		ask = a.last != "" && w.owns(node) && a.due(now, askSpacing)
		a.last = beat.Instance
	}
	alarm := len(rivals) > 1 && w.owns(node) && now.Sub(a.told) >= twinAlarm
	if alarm {
		a.told = now
	}
	w.mu.Unlock()
	w.wonder(node, ask)
	if again {
		w.correct(node)
	}
	if len(rivals) > 1 && w.owns(node) {
		w.part(node, rivals, alarm)
	}
	return !beat.Fenced
}

// wonder asks a node who is there.
func (w *twins) wonder(node string, ask bool) {
	if !ask {
		return
	}
	if err := w.ask(node, w.question()); err != nil {
		w.log.Warn("node not asked who is there", zap.String("node", node), zap.Error(err))
	}
}

// part fences all but the one that was there first.
func (w *twins) part(node string, rivals map[string]wire.Beat, alarm bool) {
	first := firstOf(rivals)
	if alarm {
		w.log.Error("two agents have one node's identity; the later one is fenced", zap.String("node", node),
			zap.String("stays", first), zap.Int("agents", len(rivals)))
		w.tell(node, "DuplicateNode", "Two agents are connected as this node. The one that came later gets nothing and reports nothing. Was a gateway's disk copied?")
	}
	news := false
	for instance, beat := range rivals {
		if instance == first {
			continue
		}
		news = news || !beat.Fenced
		w.found.Inc()
		if err := w.fence(node, instance); err != nil {
			w.log.Warn("agent not fenced", zap.String("node", node), zap.Error(err))
		}
	}
	if news { // and once more when it says that it is fenced, which it may not live to do
		w.correct(node)
	}
}

// correct asks a node to report again.
func (w *twins) correct(node string) {
	if err := w.again(node); err != nil {
		w.log.Warn("node not asked to report again", zap.String("node", node), zap.Error(err))
	}
}

// firstOf is the instance that stays: not a fenced one, then the one attached for longest.
func firstOf(rivals map[string]wire.Beat) string {
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

// of returns what is known of a node. The caller holds mu.
func (w *twins) of(node string) *agents {
	a := w.nodes[node]
	if a == nil {
		a = &agents{answers: map[string]map[string]wire.Beat{}}
		w.nodes[node] = a
	}
	return a
}

// due reports whether it is time to ask, and notes that it is done.
func (a *agents) due(now time.Time, spacing time.Duration) bool {
	if now.Sub(a.asked) < spacing {
		return false
	}
	a.asked = now
	return true
}

// falls notes that an instance is fenced and reports whether that is news.
func (a *agents) falls(instance string) bool {
	if a.fenced[instance] {
		return false
	}
	if a.fenced == nil || len(a.fenced) >= fencedKept {
		a.fenced = map[string]bool{}
	}
	a.fenced[instance] = true
	return true
}

// answer notes an answer and returns all to the same question. It returns none for an answer that is one too many.
func (a *agents) answer(beat wire.Beat) map[string]wire.Beat {
	if beat.Who == "" {
		return nil
	}
	given := a.answers[beat.Who]
	if given == nil {
		given = map[string]wire.Beat{}
		a.answers[beat.Who] = given
		if a.order = append(a.order, beat.Who); len(a.order) > questionsKept {
			delete(a.answers, a.order[0])
			a.order = a.order[1:]
		}
	}
	if _, known := given[beat.Instance]; !known && len(given) >= answersKept {
		return nil
	}
	given[beat.Instance] = wire.Beat{Fenced: beat.Fenced, Since: beat.Since}
	return maps.Clone(given)
}
