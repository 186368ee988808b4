package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A goModule runs the go command in the module of a recipe, with the recipe's environment.
type goModule struct {
	recipe string // the name, for errors
	dir    string
	env    []string
}

func newGoModule(tree string, r recipe) goModule {
	return goModule{recipe: r.name, dir: filepath.Join(tree, r.module), env: r.buildEnv()}
}

// command returns a go command in a process group of its own: the compilers below it must stop with it, and a Ctrl-C must reach
// this process first, which then decides. GOOS and GOARCH are removed: the programs run on this machine.
func (m goModule) command(ctx context.Context, args ...string) *exec.Cmd {
	const grace = 10 * time.Second // the go command removes its work folder on an interrupt
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.dir
	cmd.Env = append(withoutVars(os.Environ(), "CGO_ENABLED", "GOFLAGS", "GOWORK", "GOOS", "GOARCH", "PWD"), m.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = grace
	return cmd
}

func withoutVars(env []string, names ...string) []string {
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(names, name)
	})
}

// output runs a quick go command with little output.
func (m goModule) output(ctx context.Context, args ...string) (string, error) {
	cmd := m.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", m.explainFailure(ctx, args[0], err, strings.Split(strings.TrimSpace(stderr.String()), "\n"))
	}
	return stdout.String(), nil
}

// countModules counts the zips in go.sum: the most that a first run downloads.
func (m goModule) countModules() int {
	content, err := os.ReadFile(filepath.Join(m.dir, "go.sum"))
	if err != nil {
		return 0
	}
	n := 0
	for line := range strings.Lines(string(content)) {
		if !strings.Contains(line, "/go.mod h1:") {
			n++
		}
	}
	return n
}

// explainFailure makes an error of a failed go command: what failed, the compiler's last lines, and what to do.
func (m goModule) explainFailure(ctx context.Context, verb string, err error, said []string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: stopped: %w (what was compiled is kept, the next run goes on from there)", m.recipe, context.Cause(ctx))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("build %s: the go command is not in PATH: install Go 1.26.6 or newer (https://go.dev/dl)", m.recipe)
	}
	text := strings.Join(said, "\n\t")
	if advice := adviceFor(text + " " + err.Error()); advice != "" {
		text += "\n\tWhat to do: " + advice
	}
	return fmt.Errorf("build %s: go %s in %s: %w\n\t%s", m.recipe, verb, m.dir, err, text)
}

// adviceFor recognizes failures that the sources did not cause. It reads the go command's text, the only source.
func adviceFor(said string) string {
	for _, known := range []struct{ words, advice string }{
		{"no space left on device", "free some space (a first build needs about 5 GB for Go's build cache, 1 GB for modules " +
			"and 1 GB in TMPDIR), or move them: GOCACHE, GOMODCACHE, TMPDIR, FROND_CACHE"},
		{"signal: killed", "the kernel probably ran out of memory; linking Kubernetes takes about 3 GB: free some, or build with GOMAXPROCS=1"},
		{"dial tcp", "the modules have to be fetched once: check the network, a proxy (HTTPS_PROXY), or GOPROXY"},
		{"no such host", "the modules have to be fetched once: check the network, a proxy (HTTPS_PROXY), or GOPROXY"},
		{"module lookup disabled", "the modules have to be fetched once: run again without GOPROXY=off"},
		{"requires go >=", "install the Go version it names (https://go.dev/dl), or let go fetch it: GOTOOLCHAIN=auto"},
		{"build cache is required", "set HOME, or GOCACHE to a folder you can write"},
		{"permission denied", "make the folder it names yours, or set GOCACHE, GOMODCACHE and FROND_CACHE to folders you can write"},
		{"SECURITY ERROR", "a module is not what this repository was written with: do not go on; look at the proxy in GOPROXY"},
		{"executable file not found", "a C compiler is needed for runc: apt-get install " + runcPackages},
	} {
		if strings.Contains(said, known.words) {
			return known.advice
		}
	}
	return ""
}

// lineWriter is a Writer that passes on whole lines.
type lineWriter struct {
	each func(string)
	rest []byte
}

var _ io.Writer = (*lineWriter)(nil)

func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		l.each(strings.TrimRight(string(l.rest[:i]), "\r"))
		l.rest = l.rest[i+1:]
	}
}

// lastLines keeps the last lines of a command's output.
type lastLines struct{ kept []string }

func (t *lastLines) add(line string) {
	const most = 30 // a screen; the first error of a compiler is rarely further up
	if t.kept = append(t.kept, line); len(t.kept) > most {
		t.kept = t.kept[1:]
	}
}
