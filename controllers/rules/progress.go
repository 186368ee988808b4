package rules

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/delivery"
)

// maxErrorText bounds an error in a status.
const maxErrorText = 300

// counts is what happened to the messages of a rule since its status was last written.
type counts struct {
	delivered, gaveUp int64
	errors            []string
}

// feedState says whether the hub gives a rule's messages: the zero value if it does, or if the rule asks for none.
type feedState struct {
	// begun is when the feed was begun, while the hub has not answered.
	begun time.Time
	// err is why the hub does not give messages.
	err error
}

// progress collects what happens to the messages of one rule. It implements delivery.Observer.
type progress struct {
	metrics ruleMetrics
	changed func()

	mu sync.Mutex
	// unwritten is what the status does not have yet; guarded by mu.
	unwritten counts
	// current is when the hub stored the message that is being sent, the zero time without one; guarded by mu.
	current time.Time
	// feed is what is known about the feed; guarded by mu.
	feed feedState
	// dirty says that changed was called since the last snapshot; guarded by mu.
	dirty bool
}

// update changes the state, and says so once until the next snapshot.
func (p *progress) update(change func()) {
	p.mu.Lock()
	change()
	tell := !p.dirty
	p.dirty = true
	p.mu.Unlock()
	if tell {
		p.changed()
	}
}

// Began implements delivery.Observer.
func (p *progress) Began(m delivery.Message) { p.update(func() { p.current = m.Stored }) }

// Failed implements delivery.Observer.
func (p *progress) Failed(at time.Time, err error) {
	p.metrics.retried.Inc()
	text := at.UTC().Format(time.RFC3339) + " " + truncate(err.Error())
	p.update(func() { p.unwritten.errors = lastErrors(append(p.unwritten.errors, text)) })
}

// Delivered implements delivery.Observer.
func (p *progress) Delivered() {
	p.metrics.delivered.Inc()
	p.update(func() {
		p.unwritten.delivered++
		p.current = time.Time{}
	})
}

// gaveUp is a Reader's GaveUp.
func (p *progress) gaveUp() {
	p.metrics.gaveUp.Inc()
	p.update(func() {
		p.unwritten.gaveUp++
		p.current = time.Time{}
	})
}

// feedBegins says that the hub was not asked for messages yet, or that none are wanted.
func (p *progress) feedBegins(wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.feed = feedState{}
	if wanted {
		p.feed.begun = time.Now()
	}
}

// feedMade is a Reader's Made.
func (p *progress) feedMade(err error) {
	p.mu.Lock()
	same := p.feed.begun.IsZero() && (p.feed.err == nil) == (err == nil)
	p.feed = feedState{err: err}
	p.mu.Unlock()
	if !same {
		p.changed()
	}
}

func (p *progress) feedState() feedState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.feed
}

// truncate returns the beginning of an error's text.
func truncate(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
}

func lastErrors(all []string) []string { return all[max(0, len(all)-rules.MaxErrors):] }

// snapshot returns what the status does not have yet.
func (p *progress) snapshot() (unwritten counts, current time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirty = false
	unwritten = p.unwritten
	unwritten.errors = append([]string(nil), unwritten.errors...)
	return unwritten, p.current
}

// markWritten removes a snapshot that the status has now.
func (p *progress) markWritten(written counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwritten.delivered -= written.delivered
	p.unwritten.gaveUp -= written.gaveUp
	// Errors are only appended; the oldest may be gone already.
	if n := len(written.errors); n > 0 {
		for i, e := range slices.Backward(p.unwritten.errors) {
			if e == written.errors[n-1] {
				p.unwritten.errors = p.unwritten.errors[i+1:]
				break
			}
		}
	}
}

// nextStatus returns the status of a rule. waiting is what the hub says of its consumer.
func nextStatus(rule *rules.Rule, unwritten counts, current time.Time, waiting int64, ready metav1.Condition) rules.RuleStatus {
	next := *rule.Status.DeepCopy()
	next.SuccessMessages += unwritten.delivered
	next.FailMessages += unwritten.gaveUp
	next.Errors = lastErrors(append(next.Errors, unwritten.errors...))
	next.WaitingMessages, next.OldestWaiting = waiting, nil
	if waiting > 0 && !current.IsZero() {
		oldest := metav1.NewTime(current.Truncate(time.Second))
		next.OldestWaiting = &oldest
	}
	next.ObservedGeneration = rule.Generation
	meta.SetStatusCondition(&next.Conditions, ready)
	return next
}
