package exercise_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/exercise"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/swarm/memstore"
)

func TestJudgePhase_EachLimit(t *testing.T) {
	result := exercise.Result{Seconds: 36, Sent: 100, Received: 400, Linked: 5, Latency: measure.Summary{Count: 10, P50: 10, P99: 90, Max: 100}}
	limit := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	for name, tt := range map[string]struct {
		limits  plan.Limits
		missing int
		failed  int64
		fails   string
	}{
		"none":           {},
		"kept":           {limits: plan.Limits{P50: limit(10 * time.Millisecond), P99: limit(90 * time.Millisecond), Max: limit(time.Second), BytesPerLinkHour: 10_000}},
		"p50":            {limits: plan.Limits{P50: limit(9 * time.Millisecond)}, fails: "p50"},
		"p99":            {limits: plan.Limits{P99: limit(89 * time.Millisecond)}, fails: "p99"},
		"max":            {limits: plan.Limits{Max: limit(99 * time.Millisecond)}, fails: "max"},
		"bytes":          {limits: plan.Limits{BytesPerLinkHour: 9_999}, fails: "bytes per link and hour"},
		"missing":        {missing: 1, fails: "all operations end"},
		"refused writes": {failed: 1, fails: "no request fails"},
	} {
		t.Run(name, func(t *testing.T) {
			r := result
			r.Missing, r.Failed = tt.missing, tt.failed
			var failed []string
			for _, j := range exercise.JudgePhase(tt.limits, r) {
				if !j.Pass {
					failed = append(failed, j.Name)
				}
			}
			if got := strings.Join(failed, ", "); got != tt.fails {
				t.Errorf("fails %q, want %q", got, tt.fails)
			}
		})
	}
}

func TestAudit_ComparesPods(t *testing.T) {
	key := func(name string) wire.Key { return wire.Key{Resource: "pods", Namespace: "ns", Name: name} }
	pod := func(uid string) corev1.Pod { return corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}} }
	lost, resurrected := exercise.ComparePods(
		map[wire.Key]corev1.Pod{key("same"): pod("1"), key("replaced"): pod("2"), key("lost"): pod("3")},
		map[wire.Key]memstore.Object{key("same"): {UID: "1"}, key("replaced"): {UID: "old"}, key("ghost"): {UID: "4"}},
	)
	slices.Sort(lost)
	if diff := cmp.Diff([]string{"node: pods ns/lost", "node: pods ns/replaced"}, lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"node: pods ns/ghost"}, resurrected); diff != "" {
		t.Errorf("resurrected (-want +got):\n%s", diff)
	}
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprint("object ", i))
	}
	if text := exercise.Describe(many); !strings.HasPrefix(text, "50 objects, among them") || len(text) > 200 {
		t.Errorf("%s", text)
	}
}
