package resolve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

// The oldest rules of a namespace are within the limit, by name those of the same second.
func TestBeyondLimit(t *testing.T) {
	var all []*rules.Rule
	for i := range 2 * resolve.MaxRules {
		all = append(all, &rules.Rule{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("rule-%03d", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(1_000+i/50), 0)),
		}})
	}
	shuffled := slices.Clone(all)
	slices.Reverse(shuffled)
	for i, rule := range all {
		if beyond := resolve.BeyondLimit(rule, slices.Values(shuffled)); beyond != (i >= resolve.MaxRules) {
			t.Errorf("rule %d: beyond the limit %t", i, beyond)
		}
	}
}
