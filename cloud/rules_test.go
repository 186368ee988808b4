package cloud_test

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/frond-edge/frond/cloud"
	"github.com/frond-edge/frond/controllers/devicecopy"
	"github.com/frond-edge/frond/deploy/rbac"
)

// expandRules expands rules to one line for each verb on each resource.
func expandRules(rules []rbacv1.PolicyRule) map[string]bool {
	out := map[string]bool{}
	for _, r := range rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, verb := range r.Verbs {
			for _, url := range r.NonResourceURLs {
				out[verb+" "+url] = true
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						out[strings.TrimSpace(verb+" "+strings.TrimPrefix(group+"/"+resource, "/")+" "+name)] = true
					}
				}
			}
		}
	}
	return out
}

// manifestRules reads the rules of the named roles from the manifest, in any namespace.
func manifestRules(t *testing.T, skip ...string) []rbacv1.PolicyRule {
	t.Helper()
	return rulesIn(t, rbac.Cloudcore(), skip...)
}

func rulesIn(t *testing.T, manifest string, skip ...string) []rbacv1.PolicyRule {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 1<<10); ; {
		var role rbacv1.ClusterRole // a Role has the same fields
		switch err := decoder.Decode(&role); {
		case errors.Is(err, io.EOF):
			return rules
		case err != nil:
			t.Fatal(err)
		}
		if strings.HasSuffix(role.Kind, "Role") && !slices.Contains(skip, role.Name) {
			rules = append(rules, role.Rules...)
		}
	}
}

// The manifest grants what the code needs and no verb more, so that each line of it has a user.
func TestRules_MatchTheManifest(t *testing.T) {
	need := expandRules(cloud.Rules())
	maps.DeleteFunc(need, func(right string, _ bool) bool { // included in the rights of frond-cloudcore-as-node on all resources
		return strings.HasPrefix(right, "impersonate-on:") && !strings.HasSuffix(right, "*")
	})
	granted := expandRules(manifestRules(t, "frond-cloudcore-scopes-network", "frond-cloudcore-scopes-drivers", "frond-scrape"))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(need)), slices.Sorted(maps.Keys(granted))); diff != "" {
		t.Errorf("rights (-the code's +the manifest's):\n%s", diff)
	}
}

// The copy of a status in the Device needs no right beyond those that cloudcore always has: a policy bounds what it changes of a Device.
func TestRules_OfTheStatusInDevice(t *testing.T) {
	granted := expandRules(manifestRules(t))
	for right := range expandRules(devicecopy.Rules()) {
		if !granted[right] {
			t.Errorf("cloudcore lacks the right %s", right)
		}
	}
}

func TestManifest_ImpersonatesOnlyNodes(t *testing.T) {
	for right := range expandRules(manifestRules(t)) {
		verb, what, _ := strings.Cut(right, " ")
		switch {
		case verb == "*" || verb == "impersonate" || verb == "escalate" || verb == "bind":
			t.Errorf("the manifest grants %s", right)
		case strings.HasPrefix(verb, "impersonate:") && right != "impersonate:arbitrary-node authentication.k8s.io/nodes":
			t.Errorf("the manifest grants %s", right)
		case strings.Contains(what, "*") && !strings.HasPrefix(verb, "impersonate-on:arbitrary-node:"):
			t.Errorf("the manifest grants %s", right)
		}
	}
}
