package toolchain_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/toolchain"
)

// smallTree makes a source tree whose three commands print the same text.
func smallTree(t *testing.T, text string) string {
	t.Helper()
	tree := t.TempDir()
	writeTree(t, tree, map[string]string{"go.mod": "module github.com/frond-edge/frond\n\ngo 1.26.0\n", "go.sum": ""})
	writePrograms(t, tree, text)
	return tree
}

func writePrograms(t *testing.T, tree, text string) {
	t.Helper()
	for _, name := range []string{"cloudcore", "edgecore", "frond"} {
		writeTree(t, tree, map[string]string{"cmd/" + name + "/main.go": "package main\n\nfunc main() { print(\"" + text + "\") }\n"})
	}
}

func runProgram(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestEnsure_RebuildsWhenSourcesChange(t *testing.T) {
	req := toolchain.Request{Frond: true, Tree: smallTree(t, "one"), Cache: t.TempDir()}
	if _, err := toolchain.Find(t.Context(), req); !errors.Is(err, toolchain.ErrMissing) {
		t.Errorf("find before the build: %v", err)
	}
	var out bytes.Buffer
	first, err := toolchain.Ensure(t.Context(), req, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if got := runProgram(t, first.Edgecore); got != "one" || first.Kube != "" {
		t.Errorf("edgecore says %q, paths %+v", got, first)
	}
	for _, want := range []string{"building frond: ", "built frond in "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}

	if found, err := toolchain.Find(t.Context(), req); err != nil || found.Edgecore != first.Edgecore {
		t.Errorf("find after the build: %v, %s", err, found.Edgecore)
	}

	out.Reset()
	writeTree(t, req.Tree, map[string]string{"cmd/frond/main_test.go": "package main"})
	t.Setenv("GOPROXY", "off")
	second, err := toolchain.Ensure(t.Context(), req, &out)
	if err != nil || second.Frond != first.Frond || out.Len() != 0 {
		t.Errorf("a second call: %v, %s, said %q, want the same path and no word", err, second.Frond, out.String())
	}

	writePrograms(t, req.Tree, "two")
	third, err := toolchain.Ensure(t.Context(), req, &out)
	if err != nil {
		t.Fatal(err)
	}
	if got := runProgram(t, third.Cloudcore); got != "two" {
		t.Errorf("after a change cloudcore says %q", got)
	}
	if got := runProgram(t, first.Cloudcore); got != "one" {
		t.Errorf("the program of a running cluster now says %q", got)
	}
}

func TestEnsure_ConcurrentCallsBuildOnce(t *testing.T) {
	req := toolchain.Request{Frond: true, Tree: smallTree(t, "hello"), Cache: t.TempDir()}
	var outs [3]bytes.Buffer
	var paths [3]toolchain.Paths
	var g errgroup.Group
	for i := range outs {
		g.Go(func() (err error) {
			paths[i], err = toolchain.Ensure(t.Context(), req, &outs[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	built := 0
	for i := range outs {
		built += strings.Count(outs[i].String(), "built frond in ")
		if paths[i].Frond != paths[0].Frond {
			t.Errorf("paths differ: %s and %s", paths[i].Frond, paths[0].Frond)
		}
	}
	if built != 1 {
		t.Errorf("built %d times", built)
	}
}

func TestEnsure_ReportsCompilerErrors(t *testing.T) {
	req := toolchain.Request{Frond: true, Tree: smallTree(t, "x"), Cache: t.TempDir()}
	writeTree(t, req.Tree, map[string]string{"cmd/frond/main.go": "package main\n\nfunc main() { undefinedName() }\n"})
	_, err := toolchain.Ensure(t.Context(), req, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") || !strings.Contains(err.Error(), "build frond") {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(req.Cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.IsDir() {
			t.Errorf("a failed build left %s", e.Name())
		}
	}
}

func TestEnsure_StopsWhenCancelled(t *testing.T) {
	req := toolchain.Request{Frond: true, Tree: smallTree(t, "x"), Cache: t.TempDir()}
	t.Setenv("GOCACHE", t.TempDir()) // an empty cache, so that the standard library must be compiled
	ctx, cancel := context.WithCancel(t.Context())
	out := &textTrigger{want: "building frond", seen: cancel}
	_, err := toolchain.Ensure(ctx, req, out)
	if err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Fatalf("got %v", err)
	}
	found, err := filepath.Glob(filepath.Join(req.Cache, "frond-*", "recipe.txt"))
	if err != nil || len(found) > 0 {
		t.Errorf("a stopped build left %v, %v", found, err)
	}
}

func TestEnsure_WithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := toolchain.Ensure(t.Context(), toolchain.Request{Frond: true, Tree: smallTree(t, "x"), Cache: t.TempDir()}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("got %v, want what to do", err)
	}
}

func TestEnsure_ReadOnlyCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeTree(t, filepath.Dir(file), map[string]string{"file": "in the way"})
	_, err := toolchain.Ensure(t.Context(), toolchain.Request{Frond: true, Tree: smallTree(t, "x"), Cache: file}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "FROND_CACHE") {
		t.Errorf("got %v, want what to do", err)
	}
}

func TestAdviceFor(t *testing.T) {
	for said, want := range map[string]string{
		"link: write /tmp/x: no space left on device":                               "GOCACHE",
		"go: k8s.io/api@v0.37.1: Get https://proxy: dial tcp: lookup: no such host": "network",
		"compile: signal: killed":                                                   "memory",
		"x.go:3: undefined: y":                                                      "",
		`cgo: C compiler "gcc" not found: exec: "gcc": executable file not found`:   "libseccomp-dev",
	} {
		if got := toolchain.AdviceFor(said); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want it to name %q", said, got, want)
		}
	}
}

func TestMissingForC(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv("CC", "")
	for _, step := range []struct{ program, text, want string }{
		{"true", "#!/bin/sh\n", "compiler"},
		{"gcc", "#!/bin/sh\n", "libseccomp"},
		{"pkg-config", "#!/bin/sh\nexit 1\n", "libseccomp"},
		{"pkg-config", "#!/bin/sh\n", ""},
	} {
		writeTree(t, bin, map[string]string{step.program: step.text})
		if err := os.Chmod(filepath.Join(bin, step.program), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := toolchain.MissingForC(t.Context()); (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("with %s: %q, want it to name %q", step.program, got, step.want)
		}
	}
}

func TestEnsure_NodeWithoutCompiler(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(goTool, filepath.Join(bin, "go")); err != nil {
		t.Fatal(err)
	}
	tree := smallTree(t, "x")
	for _, module := range []string{"tools/node/containerd", "tools/node/runc", "tools/node/cni", "tools/images"} {
		writeTree(t, tree, map[string]string{module + "/go.mod": "module x\n\ngo 1.26.0\n"})
	}
	t.Setenv("PATH", bin) // without gcc and without apt-get
	t.Setenv("CC", "")
	_, err = toolchain.Ensure(t.Context(), toolchain.Request{Node: true, Tree: tree, Cache: t.TempDir()}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "no C compiler") || !strings.Contains(err.Error(), "apt-get install gcc") {
		t.Errorf("got %v, want what is missing and what to do", err)
	}
}

// buildTrigger is a writer that calls do once, when a build is announced.
type buildTrigger struct{ do func() }

func (w *buildTrigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("building frond: ")) && w.do != nil {
		w.do()
		w.do = nil
	}
	return len(p), nil
}

func TestEnsure_RebuildsWhenSourcesChangeMeanwhile(t *testing.T) {
	req := toolchain.Request{Frond: true, Tree: smallTree(t, "one"), Cache: t.TempDir()}
	paths, err := toolchain.Ensure(t.Context(), req, &buildTrigger{func() { writePrograms(t, req.Tree, "two") }})
	if err != nil {
		t.Fatal(err)
	}
	if got := runProgram(t, paths.Frond); got != "two" {
		t.Errorf("frond says %q", got)
	}
}
