package resolve

import (
	"iter"

	"github.com/frond-edge/frond/api/rules"
)

// MaxRules is how many rules of a namespace, the oldest ones of whatever pair, may read the hub's messages: each has a replicated consumer there, and the
// hub has as many as its servers allow, 1,000 by default, for all namespaces.
const MaxRules = 100

// BeyondLimit reports whether a namespace has MaxRules rules that are older than a rule. A younger one does not push out one that works.
func BeyondLimit(rule *rules.Rule, all iter.Seq[*rules.Rule]) bool {
	older := 0
	for other := range all {
		if isOlder(other, rule) {
			older++
		}
		if older == MaxRules {
			return true
		}
	}
	return false
}

func isOlder(a, b *rules.Rule) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// TooManyRules is the problem of a rule beyond the limit.
func TooManyRules() *Problem {
	return problemf(ReasonTooManyRules, "The namespace has %d older rules, and no more can read messages of gateways: delete some, or let one rule have a wildcard.", MaxRules)
}
