package check

import (
	"os"
	"strings"
	"testing"
)

// Each check has a row in the page for operators, and ids are unique within a list.
func TestChecks_AreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations/check.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, checks := range map[string][]Check{"before": Before(3), "installed": Installed()} {
		seen := map[string]bool{}
		for _, c := range checks {
			if seen[c.ID] || c.Asks == "" {
				t.Errorf("%s: check %q is there twice or asks nothing", name, c.ID)
			}
			seen[c.ID] = true
			if !strings.Contains(string(page), "\n| `"+c.ID+"` |") {
				t.Errorf("docs/operations/check.md has no row of %q", c.ID)
			}
		}
	}
}

// The names are those of the manifests.
func TestWorkloads_AreThoseOfTheManifests(t *testing.T) {
	for file, want := range map[string]string{
		"hub.yaml": "kind: StatefulSet\nmetadata:\n  name: " + hubName + "\n", "cloudcore.yaml": "kind: Deployment\nmetadata:\n  name: " + cloudcoreName + "\n",
	} {
		manifest, err := os.ReadFile("../../deploy/cloud/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(manifest), want) {
			t.Errorf("deploy/cloud/%s does not contain %q", file, want)
		}
	}
}
