package resolve_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

func TestResolve_RESTToServiceBus(t *testing.T) {
	for name, tt := range map[string]struct {
		source, target, port string
		want                 resolve.Call
		reason               string
	}{
		"as in KubeEdge":       {"/a/{x}", "/b", "9000", resolve.Call{Source: "a/{x}", Port: 9000, Path: "/b"}, ""},
		"without slashes":      {"a", "b/c/", "1", resolve.Call{Source: "a", Port: 1, Path: "/b/c"}, ""},
		"root of the service":  {"a", "", "65535", resolve.Call{Source: "a", Port: 65535, Path: "/"}, ""},
		"no path":              {"/", "/b", "9000", resolve.Call{}, resolve.ReasonInvalidSource},
		"dots":                 {"a/../b", "/b", "9000", resolve.Call{}, resolve.ReasonInvalidSource},
		"dots at the service":  {"a", "/b/..", "9000", resolve.Call{}, resolve.ReasonInvalidTarget},
		"query at the service": {"a", "/b?x=1", "9000", resolve.Call{}, resolve.ReasonInvalidTarget},
		"long":                 {strings.Repeat("a", 600), "/b", "9000", resolve.Call{}, resolve.ReasonInvalidSource},
		"no port":              {"a", "/b", "", resolve.Call{}, resolve.ReasonInvalidTarget},
		"port 0":               {"a", "/b", "0", resolve.Call{}, resolve.ReasonInvalidTarget},
		"large port":           {"a", "/b", "65536", resolve.Call{}, resolve.ReasonInvalidTarget},
	} {
		t.Run(name, func(t *testing.T) {
			rule := &rules.Rule{ObjectMeta: metav1.ObjectMeta{Namespace: "line3"}, Spec: rules.RuleSpec{
				Source: "rest", SourceResource: map[string]string{"path": tt.source}, Target: "service", TargetResource: map[string]string{"path": tt.target},
			}}
			got, problem := resolve.Resolve(rule, func(name string) *rules.RuleEndpoint {
				e := endpoints(name)
				e.Spec.Properties = map[string]string{"service_port": tt.port}
				return e
			})
			reason := ""
			if problem != nil {
				reason = problem.Reason
			}
			if got != (resolve.Resolution{Call: tt.want}) || reason != tt.reason {
				t.Errorf("%+v, reason %q", got, reason)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	var routes []resolve.Route
	for _, source := range []string{"{x}", "a", "a/b", "a/{x}", "a/{x}/c", "a/b/{y}", "é"} {
		routes = append(routes, resolve.Route{Rule: source, Call: resolve.Call{Source: source, Port: 1, Path: "/to"}})
	}
	for path, want := range map[string]string{
		"/gw/ns/a":         "a /to",
		"/gw/ns/a/":        "a /to",
		"/gw/ns/a/b":       "a/b /to",
		"/gw/ns/a/b/d/e":   "a/b/{y} /to/e",
		"/gw/ns/a/x":       "a/{x} /to",
		"/gw/ns/a/x/c/d":   "a/{x}/c /to/d",
		"/gw/ns/a/x/d":     "a/{x} /to/d",
		"/gw/ns/ab":        "{x} /to", // not a: segments are matched as a whole
		"/gw/ns/z/1%20%3F": "{x} /to/1%20%3F",
		"/gw/ns/%C3%A9":    "é /to",
	} {
		request, err := resolve.ParseRequest(path)
		if err != nil || request.Node != "gw" || request.Namespace != "ns" {
			t.Errorf("%s: %+v, %v", path, request, err)
			continue
		}
		route, to, found := resolve.Choose(routes, request)
		if got := route.Rule + " " + to; !found || got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	request, err := resolve.ParseRequest("/gw/ns/b")
	if _, _, found := resolve.Choose(routes[1:], request); found || err != nil {
		t.Errorf("a path of no rule: found %t, %v", found, err)
	}
	for _, path := range []string{"", "/", "/gw/ns", "/gw/ns/a/../b", "/gw/ns/a/%2e%2e/b", "/gw/ns/a/..%2Fb", "/gw/ns/a//b", "/gw/ns/a/%5C", "/gw/ns/a/%00", "/gw/ns/%zz"} {
		if request, err := resolve.ParseRequest(path); err == nil {
			t.Errorf("%q: %+v", path, request)
		}
	}
}
