package frond_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/frond-edge/frond"

// folderRule says what the packages of a folder may import of this module, beside the packages of the folder itself.
type folderRule struct {
	// imports are packages, or folders written "path/...".
	imports []string
	// programs of cmd may link the packages of the folder.
	programs []string
}

// The programs, by what they are for.
var (
	cloudcore = []string{"cloudcore"}
	edgecore  = []string{"edgecore"}
	both      = []string{"cloudcore", "edgecore"}
	operator  = []string{"frond", "frond-dev", "loadtest"}
	developer = []string{"frond-dev", "loadtest"}
	all       = []string{"cloudcore", "edgecore", "frond", "frond-dev", "loadtest"}
)

// folderRules is the layout of the tree. The longest path that contains a package applies to it. A package that only tests link has no
// programs.
var folderRules = map[string]folderRule{
	"": {},
	// What every program and others may rely on: plain data.
	"api":    {programs: all, imports: []string{"api/..."}},
	"deploy": {programs: operator},

	// The wire, which both halves link.
	"streams":        {programs: all, imports: []string{"api/...", "internal/failpoint"}},
	"streams/tunnel": {programs: all, imports: []string{"api/..."}},

	// The cloud half.
	"cloud":       {programs: cloudcore, imports: []string{"api/...", "controllers/...", "streams/...", "internal/certs", "internal/health", "internal/lifecycle", "internal/splice"}},
	"controllers": {programs: cloudcore, imports: []string{"api/...", "controllers", "controllers/podcache", "controllers/references", "internal/failpoint"}},
	// What refers to what is also what frond node exposed shows.
	"controllers/references": {programs: []string{"cloudcore", "frond"}, imports: []string{"api/..."}},
	// What an application makes for whom, frond app shows without a cluster.
	"controllers/applications/render":  {programs: []string{"cloudcore", "frond"}, imports: []string{"api/..."}},
	"controllers/applications/rollout": {programs: []string{"cloudcore", "frond"}, imports: []string{"api/..."}},

	// The gateway half.
	"leaf":           {programs: edgecore, imports: []string{"api/...", "leaf/redial"}},
	"leaf/redial":    {programs: []string{"edgecore", "frond", "loadtest"}},
	"devicetwin":     {programs: edgecore, imports: []string{"api/..."}},
	"leaf/store":     {programs: edgecore, imports: []string{"api/...", "internal/failpoint"}},
	"leaf/access":    {programs: edgecore, imports: []string{"api/...", "leaf/store"}},
	"leaf/localapi":  {programs: edgecore, imports: []string{"api/...", "leaf/store", "leaf/access", "internal/certs"}},
	"edged/agent":    {programs: edgecore, imports: []string{"api/...", "edged/...", "leaf/...", "streams/...", "internal/..."}},
	"edged/jobs":     {programs: edgecore, imports: []string{"api/...", "leaf/store"}},
	"edged/kubelet":  {programs: edgecore},
	"edged/hollow":   {programs: edgecore},
	"edged/hostaddr": {programs: edgecore},
	// Parts of edgecore that only edged/agent connects.
	"edged/devices":       {programs: edgecore, imports: []string{"api/...", "devicetwin/...", "leaf/store", "streams/..."}},
	"edged/diskmonitor":   {programs: edgecore, imports: []string{"api/...", "leaf"}},
	"edged/endpointsync":  {programs: edgecore, imports: []string{"api/...", "leaf/store"}},
	"edged/nodecondition": {programs: edgecore},
	"edged/nodeidentity":  {programs: edgecore, imports: []string{"api/...", "edged/enroll", "edged/identitydir", "leaf"}},
	"edged/nodenames":     {programs: edgecore, imports: []string{"api/..."}},
	"edged/nodestore":     {programs: edgecore, imports: []string{"api/...", "internal/history", "leaf/store"}},
	"edged/nodetunnel":    {programs: edgecore, imports: []string{"internal/splice", "leaf/store", "streams/tunnel"}},
	"edged/heaprelease":   {programs: edgecore},
	"edged/uplink":        {programs: edgecore},
	"edged/resync":        {programs: edgecore, imports: []string{"api/...", "leaf/store"}},
	"edged/scopesync":     {programs: edgecore, imports: []string{"api/..."}},
	"edged/enroll": {
		programs: edgecore,
		imports:  []string{"api/...", "edged/enrollexec", "edged/hubca", "edged/identitydir", "leaf", "streams/...", "internal/failpoint"},
	},
	"edged/enrollexec":  {programs: []string{"edgecore", "frond"}, imports: []string{"edged/identitydir"}},
	"edged/hubca":       {programs: []string{"edgecore", "frond"}, imports: []string{"api/..."}},
	"edged/identitydir": {programs: []string{"edgecore", "frond"}, imports: []string{"internal/failpoint"}},
	"edged/hostsetup":   {programs: []string{"frond"}, imports: []string{"api/...", "deploy/systemd"}},

	// What several of them share.
	"internal/buildinfo":  {programs: all},
	"internal/certs":      {programs: all},
	"internal/cli":        {programs: []string{"frond", "frond-dev"}},
	"internal/failpoint":  {programs: all},
	"internal/health":     {programs: both},
	"internal/history":    {programs: edgecore, imports: []string{"api/..."}},
	"internal/hubconf":    {programs: operator, imports: []string{"streams/..."}},
	"internal/install":    {programs: operator, imports: []string{"api/...", "deploy/...", "internal/certs/mint", "internal/hubconf"}},
	"internal/backup":     {programs: []string{"frond"}, imports: []string{"api/...", "internal/buildinfo", "internal/install/..."}},
	"internal/lifecycle":  {programs: both},
	"internal/logging":    {programs: both},
	"internal/program":    {programs: both, imports: []string{"internal/buildinfo"}},
	"internal/splice":     {programs: both},
	"internal/devcluster": {programs: developer, imports: []string{"api/...", "deploy/...", "internal/certs/mint", "internal/hubconf", "internal/install/...", "internal/toolchain", "streams/subject"}},
	"internal/toolchain":  {programs: developer},

	// What is not part of a running Frond.
	"cmd":      {programs: all, imports: []string{"api/...", "cloud", "controllers/applications/render", "controllers/applications/rollout", "controllers/references", "deploy/...", "edged/...", "internal/...", "loadtest/..."}},
	"loadtest": {programs: []string{"loadtest"}, imports: []string{"api/...", "leaf/redial", "streams/...", "internal/..."}},
	// The parts of frond loadtest, which an operator runs. They link no NATS server.
	"loadtest/minileaf": {programs: []string{"frond"}, imports: []string{"leaf/redial"}},
	"loadtest/swarm":    {programs: []string{"frond"}, imports: []string{"api/...", "edged/hubca", "loadtest/minileaf", "streams/..."}},
	"loadtest/measure":  {programs: []string{"frond"}},
	"loadtest/observe":  {programs: []string{"frond"}},
	"loadtest/plan":     {programs: []string{"frond"}},
	"loadtest/cleanup":  {programs: []string{"frond"}, imports: []string{"api/...", "internal/install/..."}},
	"loadtest/exercise": {programs: []string{"frond"}, imports: []string{"api/...", "loadtest/..."}},
	"loadtest/report":   {programs: []string{"frond"}, imports: []string{"loadtest/..."}},
	// The outbox of a simulated gateway: encoding is the affair of streams.
	"streams/outbox/memory": {programs: []string{"frond"}, imports: []string{"api/...", "streams/..."}},
	"tools":                 {imports: []string{"internal/..."}},
	"test":                  {imports: []string{"api/...", "leaf", "loadtest/report", "streams/...", "internal/..."}},
	// Test helpers that lie beside what they help to test.
	"leaf/access/accesstest":  {imports: []string{"api/..."}},
	"edged/hollow/hollowtest": {imports: []string{"test/kit"}},
}

// dependencyHomes lists the folders whose packages may import each outside module.
var dependencyHomes = map[string][]string{
	"github.com/eclipse/paho.mqtt.golang":    {"devicetwin/broker/external", "internal/devcluster/devices/sensor"}, // and tests
	"google.golang.org/protobuf":             {"devicetwin/dmi"},
	"github.com/nats-io/nats-server":         {"leaf", "devicetwin/broker", "test/kit"},
	"github.com/nats-io/nats.go":             {"streams", "leaf", "devicetwin/broker", "cloud", "edged/agent", "edged/devices", "edged/enroll", "internal/devcluster", "loadtest", "test/kit"},
	"github.com/nats-io/jsm.go":              {"streams", "internal/devcluster", "loadtest"},
	"sigs.k8s.io/controller-runtime":         {"controllers", "cloud", "cmd/cloudcore"},                                             // cmd passes the logger to it
	"k8s.io/apiserver":                       {"leaf/localapi", "leaf/access", "internal/health", "edged/kubelet", "cloud/gateway"}, // edged/kubelet: the feature gate that the kubelet needs
	"k8s.io/kubernetes":                      {"edged/kubelet", "leaf/access", "edged/jobs/imagepull"},                              // leaf/access: five packages, the RBAC evaluator (docs/design/0010); imagepull: the credentials of registries
	"k8s.io/cri-api":                         {"edged/kubelet", "edged/hollow", "edged/hostsetup", "edged/jobs/imagepull"},
	"k8s.io/cri-client":                      {"edged/kubelet", "edged/hollow"},
	"k8s.io/kubectl":                         {"cmd/frond"},
	"k8s.io/cli-runtime":                     {"cmd/frond"},
	"github.com/vishvananda":                 {"internal/devcluster", "edged/hostaddr", "edged/uplink"},
	"github.com/evanphx/json-patch":          {"controllers/applications/render"},
	"github.com/go-jose/go-jose":             {"leaf/access"},
	"filippo.io/age":                         {"internal/backup"},
	"github.com/hanwen/go-fuse":              {"test/faultfs"},
	"github.com/google/go-containerregistry": {"tools"},
	"github.com/robfig/cron":                 {"controllers/groups/window"},
	"github.com/HdrHistogram":                {"loadtest/measure"},
}

// unlinked lists the outside modules that a program must not link: they are many times its own size.
var unlinked = map[string][]string{
	"cloudcore": {"github.com/nats-io/nats-server", "k8s.io/kubernetes"},
	"frond":     {"github.com/nats-io/nats-server", "k8s.io/kubernetes"},
}

// goPackage has the fields of `go list` that are read here. Doc is the first sentence of the package comment.
type goPackage struct {
	ImportPath, Doc, Dir string
	Imports, GoFiles     []string
}

// listPackages returns the packages that a pattern names, and with -deps what they link.
func listPackages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Doc,Dir,Imports,GoFiles"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return list
		case err != nil:
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// inModule returns the path of a package relative to the module, and whether it belongs to it.
func inModule(importPath string) (string, bool) {
	rest, ok := strings.CutPrefix(importPath, module)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return strings.TrimPrefix(rest, "/"), true
}

// within reports whether a folder contains a path.
func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// ruleOf returns the longest listed path that contains a package.
func ruleOf(pkg string) (folder string, ok bool) {
	for folder = pkg; ; folder = path.Dir(folder) {
		if _, ok = folderRules[folder]; ok {
			return folder, true
		}
		if !strings.Contains(folder, "/") {
			return "", false
		}
	}
}

// matchesPattern reports whether a package is what a pattern of folderRule.imports names.
func matchesPattern(pkg, pattern string) bool {
	folder, subtree := strings.CutSuffix(pattern, "/...")
	return pkg == folder || subtree && within(pkg, folder)
}

// checkImport returns why a package may not import another one.
func checkImport(pkg, folder, imported string) error {
	if target, ours := inModule(imported); ours {
		if within(target, folder) || slices.ContainsFunc(folderRules[folder].imports, func(pattern string) bool { return matchesPattern(target, pattern) }) {
			return nil
		}
		return fmt.Errorf("packages of %s may import %v", folder, folderRules[folder].imports)
	}
	for dependency, homes := range dependencyHomes {
		if within(imported, dependency) && !slices.ContainsFunc(homes, func(home string) bool { return within(pkg, home) }) {
			return fmt.Errorf("only packages of %v may import %s", homes, dependency)
		}
	}
	return nil
}

// TestLayout_Imports checks the imports of each package, and that it has a comment.
func TestLayout_Imports(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		pkg, _ := inModule(p.ImportPath)
		folder, ok := ruleOf(pkg)
		if !ok {
			t.Errorf("%s: no folder of arch_test.go contains it", pkg)
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", pkg)
		}
		for _, imported := range p.Imports {
			if err := checkImport(pkg, folder, imported); err != nil {
				t.Errorf("%s imports %s: %v", pkg, imported, err)
			}
		}
	}
}

// linkedBy returns the programs that link each package, and checks that they may.
func linkedBy(t *testing.T) map[string][]string {
	t.Helper()
	programs := map[string][]string{}
	for _, command := range listPackages(t, "./cmd/...") {
		dir, _ := inModule(command.ImportPath)
		if len(command.GoFiles) == 0 || path.Dir(dir) != "cmd" {
			continue
		}
		program := path.Base(dir)
		for _, p := range listPackages(t, "-deps", "./"+dir) {
			pkg, ours := inModule(p.ImportPath)
			if slices.ContainsFunc(unlinked[program], func(outside string) bool { return within(p.ImportPath, outside) }) {
				t.Errorf("%s links %s", program, p.ImportPath)
			}
			if !ours {
				continue
			}
			programs[pkg] = append(programs[pkg], program)
			if folder, ok := ruleOf(pkg); ok && !slices.Contains(folderRules[folder].programs, program) {
				t.Errorf("%s links %s, which only %v may", program, pkg, folderRules[folder].programs)
			}
		}
	}
	return programs
}

// withoutName removes "Package NAME" from the first sentence of a package comment.
func withoutName(doc string) string {
	words := strings.SplitN(doc, " ", 3)
	return words[len(words)-1]
}

const (
	design     = "docs/DESIGN.md"
	tableBegin = "<!-- packages: written by go test . -run TestLayout_DesignTable -update -->\n"
	tableEnd   = "<!-- end of packages -->\n"
)

// TestLayout_DesignTable checks which program links which package, and compares the tables of the design with the tree.
func TestLayout_DesignTable(t *testing.T) {
	programs := linkedBy(t)
	var table strings.Builder
	table.WriteString("| package | what it does | linked by |\n|---|---|---|\n")
	for _, p := range listPackages(t, "./...") {
		if pkg, _ := inModule(p.ImportPath); pkg != "" {
			fmt.Fprintf(&table, "| `%s` | %s | %s |\n", pkg, strings.ReplaceAll(withoutName(p.Doc), "|", `\|`), strings.Join(programs[pkg], ", "))
		}
	}
	table.WriteString("\n| folder | may also import |\n|---|---|\n")
	for _, folder := range slices.Sorted(maps.Keys(folderRules)) {
		if imports := folderRules[folder].imports; len(imports) > 0 {
			fmt.Fprintf(&table, "| `%s` | `%s` |\n", folder, strings.Join(imports, "`, `"))
		}
	}
	page := read(t, design)
	before, rest, begins := strings.Cut(page, tableBegin)
	found, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s lacks the lines %q and %q", design, tableBegin, tableEnd)
	}
	if found == table.String() {
		return
	}
	if !*updateGolden {
		t.Fatalf("the tables of %s are not those of the tree: run go test . -run TestLayout_DesignTable -update", design)
	}
	if err := os.WriteFile(design, []byte(before+tableBegin+table.String()+tableEnd+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
