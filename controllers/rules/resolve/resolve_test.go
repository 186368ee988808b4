package resolve_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

// endpoints are bus, rest and service, one of each type.
func endpoints(name string) *rules.RuleEndpoint {
	types := map[string]string{"bus": rules.TypeEventBus, "rest": rules.TypeREST, "service": rules.TypeServiceBus}
	if types[name] == "" {
		return nil
	}
	return &rules.RuleEndpoint{Spec: rules.RuleEndpointSpec{RuleEndpointType: types[name]}}
}

func newRule(source, target, topic, node, resource string) *rules.Rule {
	return &rules.Rule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "line3", Name: "alarms"},
		Spec: rules.RuleSpec{
			Source: source, SourceResource: map[string]string{"topic": topic, "node_name": node},
			Target: target, TargetResource: map[string]string{"resource": resource},
		},
	}
}

func TestResolve(t *testing.T) {
	const good = "https://example.com/alarms?x=1"
	for name, tt := range map[string]struct {
		rule   *rules.Rule
		want   resolve.Feed
		reason string
	}{
		"topic":                 {newRule("bus", "rest", "user/alarm", "gw-17", good), resolve.Feed{Node: "gw-17", Topic: "line3/user/alarm", URL: good}, ""},
		"wildcards":             {newRule("bus", "rest", "user/+/x/#", "gw-17", good), resolve.Feed{Node: "gw-17", Topic: "line3/user/+/x/#", URL: good}, ""},
		"everything":            {newRule("bus", "rest", "#", "gw-17", good), resolve.Feed{Node: "gw-17", Topic: "line3/#", URL: good}, ""},
		"no source":             {newRule("other", "rest", "user/a", "gw-17", good), resolve.Feed{}, resolve.ReasonEndpointMissing},
		"no target":             {newRule("bus", "other", "user/a", "gw-17", good), resolve.Feed{}, resolve.ReasonEndpointMissing},
		"other pair":            {newRule("service", "rest", "user/a", "gw-17", good), resolve.Feed{}, resolve.ReasonPairNotSupported},
		"no topic":              {newRule("bus", "rest", "", "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"long topic":            {newRule("bus", "rest", "user/"+strings.Repeat("x", 512), "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"control character":     {newRule("bus", "rest", "user/\n", "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"not UTF-8":             {newRule("bus", "rest", "user/\xff", "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"# before the end":      {newRule("bus", "rest", "user/#/a", "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"+ within a level":      {newRule("bus", "rest", "user/a+", "gw-17", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"no node":               {newRule("bus", "rest", "user/a", "", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"node with a wildcard":  {newRule("bus", "rest", "user/a", "*", good), resolve.Feed{}, resolve.ReasonInvalidSource},
		"topic that stays":      {newRule("bus", "rest", "alarm", "gw-17", good), resolve.Feed{}, resolve.ReasonTopicNotSent},
		"port too high":         {newRule("bus", "rest", "user/a", "gw-17", "http://example.com:99999"), resolve.Feed{}, resolve.ReasonInvalidTarget},
		"no URL":                {newRule("bus", "rest", "user/a", "gw-17", "http://[::1"), resolve.Feed{}, resolve.ReasonInvalidTarget},
		"file":                  {newRule("bus", "rest", "user/a", "gw-17", "file:///etc/passwd"), resolve.Feed{}, resolve.ReasonInvalidTarget},
		"no host":               {newRule("bus", "rest", "user/a", "gw-17", "http:///x"), resolve.Feed{}, resolve.ReasonInvalidTarget},
		"host without a scheme": {newRule("bus", "rest", "user/a", "gw-17", "example.com"), resolve.Feed{}, resolve.ReasonInvalidTarget},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem := resolve.Resolve(tt.rule, endpoints)
			reason := ""
			if problem != nil {
				if reason = problem.Reason; problem.Message == "" {
					t.Error("the problem has no message")
				}
			}
			if diff := cmp.Diff(resolve.Resolution{Feed: tt.want}, got); diff != "" || reason != tt.reason {
				t.Errorf("reason %q, want %q; feed (-want +got):\n%s", reason, tt.reason, diff)
			}
		})
	}
}
