package toolchain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/internal/toolchain/cache"
)

func writeTree(t *testing.T, tree string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHashFiles_TakesBuildInputs(t *testing.T) {
	tree := t.TempDir()
	writeTree(t, tree, map[string]string{
		"go.mod": "module x", "go.sum": "sums", "doc.go": "package x", "doc_test.go": "package x", "README.md": "#", "notes.txt": "top",
		"room/a.go": "package room", "room/schema.json": "{}", "room/deep/er/page.html": "<p>", "room/testdata/x.json": "{}",
		"room/a_test.go": "package room", "pictures/a.png": "no Go beside it", "docs/x.go": "package docs",
		".git/x.go": "package git", "_old/x.go": "package old", "nested/go.mod": "module y", "nested/y.go": "package y",
	})
	got, err := toolchain.HashFiles(tree, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range got {
		names = append(names, strings.Fields(line)[1])
	}
	want := []string{"doc.go", "go.mod", "go.sum", "room/a.go", "room/deep/er/page.html", "room/schema.json"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("hashed files (-want +got):\n%s", diff)
	}

	if apart, err := toolchain.HashFiles(tree, []string{"."}, "room/deep"); err != nil || len(apart) != len(want)-1 {
		t.Errorf("without a folder: %v, %v", apart, err)
	}

	writeTree(t, tree, map[string]string{"room/schema.json": `{"a":1}`})
	after, err := toolchain.HashFiles(tree, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(got, after) {
		t.Error("a changed file left the hashes as they were")
	}
}

func TestHashFiles_NamedFiles(t *testing.T) {
	tree := t.TempDir()
	writeTree(t, tree, map[string]string{"go.mod": "module x", "go.sum": "sums", "a.go": "package x"})
	got, err := toolchain.HashFiles(tree, []string{"go.mod", "go.sum"})
	if err != nil || len(got) != 2 {
		t.Errorf("got %v, %v, want the two files", got, err)
	}
	if _, err := toolchain.HashFiles(tree, []string{"tools/kube"}); err == nil {
		t.Error("a missing module went unnoticed")
	}
}

// alignedModules are the modules that a fresh machine compiles. What two of them share is compiled once only if they require the
// same versions, of it and of all that it imports: otherwise Kubernetes is compiled twice.
var alignedModules = []string{
	".", "tools/kube", "tools/conformance/suite", "tools/coredns", "tools/node/containerd", "tools/node/cni", "tools/node/runc", "tools/images",
}

// unalignedRequirements may differ: runc needs a newer cgroups than the one whose functions the kubelet calls.
var unalignedRequirements = map[string]bool{"github.com/opencontainers/cgroups": true}

func TestModules_RequireTheSameVersions(t *testing.T) {
	type requirement struct{ module, version string }
	first := map[string]requirement{}
	for _, module := range alignedModules {
		found := moduleRequirements(t, filepath.Join("..", "..", module, "go.mod"))
		if len(found) < 8 {
			t.Errorf("found %d requirements in %s/go.mod", len(found), module)
		}
		for name, version := range found {
			other, known := first[name]
			switch {
			case !known:
				first[name] = requirement{module, version}
			case other.version != version && !unalignedRequirements[name]:
				t.Errorf("%s: %s/go.mod requires %s, %s/go.mod %s: run `go get %s@…` with the newer version where the older one is, then go mod tidy",
					name, module, version, other.module, other.version, name)
			}
		}
	}
}

func moduleRequirements(t *testing.T, file string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	parsed, err := modfile.ParseLax(file, content, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, require := range parsed.Require {
		found[require.Mod.Path] = require.Mod.Version
	}
	return found
}

func TestRecipe_KeysDiffer(t *testing.T) {
	env, files := []string{"go1.26.8", "linux", "amd64"}, []string{"00 go.mod"}
	seen := map[string]string{}
	for _, r := range toolchain.AllRecipes() {
		for what, key := range map[string]string{
			r.Name():              r.Key(env, files),
			r.Name() + " new Go":  r.Key([]string{"go1.26.9", "linux", "amd64"}, files),
			r.Name() + " changed": r.Key(env, []string{"01 go.mod"}),
		} {
			if other, ok := seen[key]; ok {
				t.Errorf("%s and %s have the same key", what, other)
			}
			seen[key] = what
		}
		if again := toolchain.RecipeNamed(r.Name()); again.Key(env, files) != r.Key(env, files) {
			t.Errorf("%s: two keys for the same inputs", r.Name())
		}
	}
	if len(cache.Key("x")) != 16 {
		t.Errorf("key %q is not 16 digits", cache.Key("x"))
	}
}

func TestLinkerFlags_StampedVersionsAreBuilt(t *testing.T) {
	built := func(file, module string) string {
		version, err := toolchain.RequiredVersion(filepath.Join("..", "..", file), module)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	if got := built("tools/node/containerd/go.mod", "github.com/containerd/containerd/v2"); got != toolchain.ContainerdVersion {
		t.Errorf("containerd %s is stamped %s", got, toolchain.ContainerdVersion)
	}
	kubelet, apiserver := built("go.mod", "k8s.io/kubernetes"), built("tools/kube/go.mod", "k8s.io/kubernetes")
	if kubelet == "" || kubelet != apiserver {
		t.Errorf("the kubelet is %s and its control plane %s", kubelet, apiserver)
	}
}

func TestLinkerFlags(t *testing.T) {
	tree := t.TempDir() // in no repository, so devel
	writeTree(t, tree, map[string]string{
		"go.mod": "module github.com/frond-edge/frond\n\nrequire (\n\tk8s.io/kubernetes-x v1.0.0\n\tk8s.io/kubernetes v1.37.1\n)\n",
	})
	got, err := toolchain.LinkerFlags(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-X k8s.io/component-base/version.gitVersion=v1.37.1", "-X k8s.io/client-go/pkg/version.gitMinor=37"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if strings.Contains(got, "buildinfo") {
		t.Errorf("%q names a version of Frond where there is none", got)
	}
}

func TestFindTree(t *testing.T) {
	tree := t.TempDir()
	writeTree(t, tree, map[string]string{
		"go.mod": "module github.com/frond-edge/frond\n\ngo 1.26.0\n", "tools/kube/go.mod": "module github.com/frond-edge/frond/tools/kube\n",
	})
	tree, err := filepath.EvalSymlinks(tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FROND_SOURCE", "")
	t.Chdir(filepath.Join(tree, "tools", "kube"))
	if got, err := toolchain.FindTree(""); err != nil || got != tree {
		t.Errorf("from a nested module: got %q, %v, want %q", got, err, tree)
	}
	t.Chdir(t.TempDir())
	if _, err := toolchain.FindTree(""); err == nil || !strings.Contains(err.Error(), "FROND_SOURCE") {
		t.Errorf("outside: got %v, want what to do", err)
	}
	t.Setenv("FROND_SOURCE", tree)
	if got, err := toolchain.FindTree(""); err != nil || got != tree {
		t.Errorf("by FROND_SOURCE: got %q, %v", got, err)
	}
	if _, err := toolchain.FindTree(filepath.Join(tree, "tools")); err == nil {
		t.Error("a folder that is no tree was accepted")
	}
}
