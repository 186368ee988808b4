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
		"no services":      {head + "- services: {perSecond: 1, for: 1s}\n", "phases[1].services.count: is 0"},
		"many services":    {head + "- services: {count: 10001, perSecond: 1, for: 1s}\n", "phases[1].services.count: is 10001, write at most 10000"},
		"kill of nothing":  {head + "- pods: {perGateway: 1, perSecond: 1}\n- kill: {restore: [a]}\n", "phases[2].kill.command: is 0"},
		"kill too early":   {head + "- kill: {command: [a]}\n", "phases[1].kill: needs a phase pods"},
		"metrics":          {head + "metrics: [{name: hub, url: 'hub:1'}]\n", "metrics[0]: write a name"},
		"too many":         {strings.Replace(head, "gateways: 1", "gateways: 1000000", 1), "at most 100000"},
	} {
		if _, err := plan.Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// A plan with each kind of phase is read, with what kills and what restores.
func TestParse_EachKind(t *testing.T) {
	p, err := plan.Parse([]byte(`
apiVersion: loadtest.frond.io/v1alpha1
allServices: true
phases:
- join: {gateways: 2, perSecond: 1}
- pods: {perGateway: 1, perSecond: 1}
- churn: {perSecond: 1, for: 1s}
- rollout: {perSecond: 1}
- cut: {share: 0.5, for: 1s, perSecond: 1}
- kill: {command: [frond, dev, kill, hub-1], restore: [frond, dev, start, hub-1]}
- storm: {}
- idle: {for: 1s}
- services: {count: 3, perSecond: 2, for: 4s}
`))
	kit.Must(t, err)
	var kinds []string
	for _, phase := range p.Phases {
		kinds = append(kinds, phase.Kind())
	}
	if got := strings.Join(kinds, " "); got != "join pods churn rollout cut kill storm idle services" {
		t.Errorf("kinds %s", got)
	}
	if kill := p.Phases[5].Kill; len(kill.Command) != 4 || kill.Restore[2] != "start" || !p.AllServices || p.Phases[8].Services.Count != 3 {
		t.Errorf("plan %+v", p)
	}
}
