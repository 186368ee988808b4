package devicewarnings

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// repeatInterval is how often a warning that lasts is recorded again: Kubernetes keeps Events for an hour.
	repeatInterval = time.Hour
	// changeInterval is the least time between two Events of one reason about a Device.
	changeInterval = time.Minute
	// nodeInterval and nodeBurst are the budget of a node, totalPerSecond and totalBurst that of a replica.
	nodeInterval               = 15 * time.Second
	nodeBurst                  = 20
	totalPerSecond, totalBurst = 20, 100
)

// subject is one reason about one Device.
type subject struct {
	device types.UID
	reason string
}

// course is what has become of a warning so far.
type course struct {
	began    time.Time
	message  string // of the last Event
	once     bool
	recorded time.Time // zero: not yet
}

// schedule decides when warnings are recorded. It belongs to one goroutine.
type schedule struct {
	courses map[subject]*course
	budgets map[string]*rate.Limiter
	total   *rate.Limiter
}

func newSchedule() *schedule {
	return &schedule{courses: map[subject]*course{}, budgets: map[string]*rate.Limiter{}, total: rate.NewLimiter(totalPerSecond, totalBurst)}
}

// result is what Due says of a warning.
type result int

const (
	quiet    result = iota // recorded already, or does not last long enough yet
	due                    // to be recorded now
	deferred               // beyond a budget: ask again
)

// due decides about a warning about a device of a node.
func (s *schedule) due(node string, device types.UID, w Warning, now time.Time) result {
	at := subject{device, w.Reason}
	c := s.courses[at]
	if c == nil {
		c = &course{began: now}
		s.courses[at] = c
	}
	switch since := now.Sub(c.recorded); {
	case now.Sub(c.began) < w.Hold:
		return quiet
	case !c.recorded.IsZero() && since < changeInterval,
		!c.recorded.IsZero() && c.message == w.Message && (w.Once || since < repeatInterval):
		return quiet
	}
	budget := s.budgets[node]
	if budget == nil {
		budget = rate.NewLimiter(rate.Every(nodeInterval), nodeBurst)
		s.budgets[node] = budget
	}
	if budget.TokensAt(now) < 1 || !s.total.AllowN(now, 1) {
		return deferred
	}
	budget.AllowN(now, 1)
	c.message, c.once, c.recorded = w.Message, w.Once, now
	return due
}

// prune forgets what is over: all but the present warnings, and the nodes without devices. Of devices whose gateway is away it keeps what was recorded
// and is not to be repeated.
func (s *schedule) prune(present map[subject]bool, away map[types.UID]bool, nodes map[string]bool) {
	for at, c := range s.courses {
		if recorded := c.once && !c.recorded.IsZero(); !present[at] && (!recorded || !away[at.device]) {
			delete(s.courses, at)
		}
	}
	for node, budget := range s.budgets {
		if !nodes[node] && budget.Tokens() >= nodeBurst { // one that comes back at once has not a new budget
			delete(s.budgets, node)
		}
	}
}
