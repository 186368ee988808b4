package frond_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/frond-edge/frond"

// ranks is the table of layers (docs/DESIGN.md §4): a package imports only packages of lower layers. A package that is not listed has
// the layer of its listed parent.
var ranks = map[string]int{
	"":                      0,
	"api":                   0,
	"deploy/crd":            0,
	"deploy/policy":         0,
	"deploy/rbac":           0,
	"internal/buildinfo":    0,
	"internal/health":       0,
	"internal/lifecycle":    0,
	"internal/logging":      0,
	"test/faultfs":          0,
	"test/kit":              0,
	"internal/toolchain":    0,
	"test/kit/kubetest":     1,
	"leaf":                  1,
	"leaf/store":            1,
	"leaf/access":           1,
	"leaf/localapi":         1,
	"streams":               1,
	"cloud/identity":        2,
	"cloud/inspect":         2,
	"controllers":           1,
	"controllers/csrs":      2,
	"controllers/desired":   2,
	"controllers/evictions": 2,
	"controllers/holds":     2,
	"controllers/autonomy":  2,
	"controllers/nodes":     2,
	"controllers/ports":     2,
	"controllers/reports":   2,
	"controllers/scopes":    2,
	"edged":                 2,
	"edged/hollow":          2,
	"cloud":                 3,
	"edged/agent":           3,
	"internal/devcluster":   4,
	"test/attacks":          4,
	"test/e2e":              4,
	"loadtest":              4,
	"cmd":                   5,
	"tools":                 5,
	"streams/tunnel":        1,
	"internal/splice":       0,
	"cloud/gateway":         2,
	"internal/certs":        0,
	"internal/failpoint":    0,
	"edged/hostaddr":        0,
	"internal/program":      1,
	"internal/history":      1,
	"test/faults":           4,
	"edged/enroll":          2,
	"edged/hostsetup":       2,
	"deploy/systemd":        0,
	"internal/install":      3,
	"internal/backup":       4,
	"internal/hubconf":      2,
	// It makes only certificates and keys, and needs no cluster.
	"internal/devcluster/pki": 0,
}

// neighbours are the allowed imports within one layer.
var neighbours = []string{
	"leaf/localapi -> leaf/store",
	"leaf/localapi -> leaf/access",
	"leaf/access -> leaf/store",
	"edged -> edged/hollow",
	"test/attacks -> internal/devcluster",
	"test/e2e -> internal/devcluster",
	"test/faults -> internal/devcluster",
	"loadtest -> internal/devcluster",
}

// homes lists the packages that may import each outside module.
var homes = map[string][]string{
	"github.com/nats-io/nats-server":         {"leaf", "test/kit/leaftest", "test/kit/streamstest", "test/kit/hubtest"},
	"github.com/nats-io/nats.go":             {"streams", "leaf", "leaf/store", "test/kit/leaftest", "test/kit/streamstest", "cloud", "edged/agent", "edged/enroll", "internal/devcluster", "test/kit/hubtest", "loadtest"},
	"github.com/nats-io/jsm.go":              {"streams", "internal/devcluster", "loadtest"},
	"sigs.k8s.io/controller-runtime":         {"controllers", "cloud", "cmd/cloudcore"},                                     // cmd passes the logger to it
	"k8s.io/apiserver":                       {"leaf/localapi", "leaf/access", "internal/health", "edged", "cloud/gateway"}, // edged: the feature gate that the kubelet needs
	"k8s.io/kubernetes":                      {"edged", "leaf/access"},                                                      // leaf/access: five packages, the RBAC evaluator (docs/design/0010)
	"k8s.io/cri-api":                         {"edged", "edged/hollow", "edged/hostsetup"},
	"k8s.io/cri-client":                      {"edged", "edged/hollow"},
	"k8s.io/kubectl":                         {"cmd/frond"},
	"k8s.io/cli-runtime":                     {"cmd/frond"},
	"github.com/vishvananda":                 {"internal/devcluster", "edged/hostaddr"},
	"github.com/go-jose/go-jose":             {"leaf/access"},
	"filippo.io/age":                         {"internal/backup"},
	"github.com/hanwen/go-fuse":              {"test/faultfs"},
	"github.com/google/go-containerregistry": {"tools"},
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Doc,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return list
		case err != nil:
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// room is the path of a package relative to the module.
func room(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// ranked finds the listed package that a package belongs to, and its layer.
func ranked(r string) (listed string, rank int, ok bool) {
	for {
		if rank, ok = ranks[r]; ok {
			return r, rank, true
		}
		i := strings.LastIndexByte(r, '/')
		if i < 0 {
			return "", 0, false
		}
		r = r[:i]
	}
}

func TestHouse(t *testing.T) {
	for _, p := range packages(t) {
		from, rank, ok := ranked(room(p.ImportPath))
		if !ok {
			t.Errorf("%s is a room that the house does not list: give it a rank in arch_test.go and docs/DESIGN.md §4", p.ImportPath)
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if err := allowed(room(p.ImportPath), from, rank, imported); err != nil {
				t.Errorf("%s imports %s: %v", p.ImportPath, imported, err)
			}
		}
	}
}

func allowed(self, from string, rank int, imported string) error {
	if imported == module || strings.HasPrefix(imported, module+"/") {
		to, other, ok := ranked(room(imported))
		switch {
		case !ok || to == from || strings.HasPrefix(to, from+"/") && from != "":
			return nil // an unlisted package is reported by itself; a listed package and its subfolders count as one
		case other < rank || slices.Contains(neighbours, from+" -> "+to):
			return nil
		}
		return fmt.Errorf("rank %d may import lower ranks only, and that is rank %d", rank, other)
	}
	for dependency, rooms := range homes {
		if imported != dependency && !strings.HasPrefix(imported, dependency+"/") {
			continue
		}
		for _, home := range rooms {
			if self == home || strings.HasPrefix(self, home+"/") {
				return nil
			}
		}
		return fmt.Errorf("%s has its home in %v", dependency, rooms)
	}
	return nil
}
