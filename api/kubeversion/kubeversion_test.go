package kubeversion_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/frond-edge/frond/api/kubeversion"
)

func TestEvaluate(t *testing.T) {
	tested := kubeversion.Tested()
	oldest, newest := tested[0], tested[len(tested)-1]
	for server, want := range map[string]string{
		newest.Patch:              kubeversion.ReasonTested,
		oldest.Patch + "-eks-abc": kubeversion.ReasonTested,
		"v1.20.3":                 kubeversion.ReasonOlder,
		"v1.99.0-alpha.1":         kubeversion.ReasonNewer,
		"master":                  kubeversion.ReasonUnreadable,
	} {
		got := kubeversion.Evaluate(server)
		if got.Reason != want || got.Tested != (want == kubeversion.ReasonTested) || got.Message == "" {
			t.Errorf("%s: %+v, want %s", server, got, want)
		}
	}
}

func TestTested_IsInOrder(t *testing.T) {
	for i, r := range kubeversion.Tested() {
		if !strings.HasPrefix(r.Patch, "v"+r.Minor+".") {
			t.Errorf("%s is no patch of %s", r.Patch, r.Minor)
		}
		if i > 0 && !version.MustParseGeneric(kubeversion.Tested()[i-1].Minor).LessThan(version.MustParseGeneric(r.Minor)) {
			t.Errorf("%s stands after a later one", r.Minor)
		}
	}
}

// Administrators read the table in the guide; the modules of tools/kube were the tested versions.
func TestTested_IsWhatTheGuideAndTheModulesSay(t *testing.T) {
	tree := filepath.Join("..", "..")
	guide := readFile(t, filepath.Join(tree, "docs/operations/install.md"))
	tested := kubeversion.Tested()
	for i, r := range tested {
		if row := "| " + r.Minor + " | " + r.Patch + " | " + string(r.Impersonation) + " |"; !strings.Contains(guide, row) {
			t.Errorf("docs/operations/install.md has no row %q", row)
		}
		module := filepath.Join(tree, "tools/kube", r.Minor, "go.mod")
		if i == len(tested)-1 {
			module = filepath.Join(tree, "tools/kube/go.mod")
		}
		if !strings.Contains(readFile(t, module), "k8s.io/kubernetes "+r.Patch+"\n") {
			t.Errorf("%s does not ask for %s", module, r.Patch)
		}
	}
	if rows := strings.Count(guide, " | v1."); rows != len(tested) {
		t.Errorf("docs/operations/install.md has %d rows of versions, the table %d", rows, len(tested))
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
