package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/test/kit"
)

func TestBuiltin_PlansAreValid(t *testing.T) {
	for name, gateways := range map[string]int{"short": 20, "1000": 1000, "10000": 10000} {
		text, ok := plan.Builtin(name)
		if !ok {
			t.Fatalf("no plan %s", name)
		}
		p, err := plan.Parse(text)
		kit.Must(t, err)
		if p.Gateways() != gateways || p.Settle.Duration <= 0 || p.Phases[0].Timeout.Duration < 2*time.Minute {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if _, ok := plan.Builtin("other"); ok {
		t.Error("there is a plan other")
	}
}

func TestParse_NamesWhatIsWrong(t *testing.T) {
	const head = "apiVersion: loadtest.frond.io/v1alpha1\nphases:\n- join: {gateways: 1, perSecond: 1}\n"
	for name, tt := range map[string]struct{ text, want string }{
		"unknown field":    {head + "- churn: {perSecnd: 1, for: 1s}\n", `unknown field "phases[1].churn.perSecnd"`},
		"unknown kind":     {head + "- explode: {}\n", `unknown field "phases[1].explode"`},
		"version":          {strings.Replace(head, "v1alpha1", "v9", 1), "apiVersion: is"},
		"no join":          {"apiVersion: loadtest.frond.io/v1alpha1\nphases:\n- idle: {for: 1s}\n", "the first phase must be join"},
		"two kinds":        {head + "- idle: {for: 1s}\n  storm: {}\n", "phases[1]: has the kinds [storm idle]"},
		"no kind":          {head + "- timeout: 1m\n", "phases[1]: has the kinds []"},
		"no rate":          {head + "- pods: {perGateway: 2}\n", "phases[1].pods.perSecond: is 0"},
		"churn of nothing": {head + "- churn: {perSecond: 1, for: 1s}\n", "phases[1].churn: needs a phase pods"},
		"share":            {head + "- pods: {perGateway: 1, perSecond: 1}\n- cut: {share: 2, for: 1s, perSecond: 1}\n", "phases[2].cut.share: is 2"},
		"no duration":      {head + "- idle: {for: soon}\n", "soon"},
		"metrics":          {head + "metrics: [{name: hub, url: 'hub:1'}]\n", "metrics[0]: write a name"},
		"too many":         {strings.Replace(head, "gateways: 1", "gateways: 1000000", 1), "at most 100000"},
	} {
		if _, err := plan.Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
