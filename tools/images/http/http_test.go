package main_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// start builds and starts the server, and returns its address and its process.
func start(t *testing.T, args ...string) (string, *exec.Cmd, *bufio.Reader) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "http")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "page"), []byte("a page"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"-listen", "127.0.0.1:0", "-root", root}, args...)...)
	cmd.Env = []string{"COLOUR=green"}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(line)
	return "http://" + words[len(words)-1], cmd, out
}

func ask(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func TestServerMisbehavesWhenAskedAndStopsInOrder(t *testing.T) {
	url, cmd, out := start(t)
	for _, step := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/page", 200, "a page"},
		{"GET", "/env", 200, "COLOUR=green"},
		{"GET", "/none", 404, "404 page not found"},
		{"GET", "/healthz", 200, "ok"},
		{"POST", "/fail", 200, "ok"},
		{"GET", "/healthz", 500, "no"},
		{"GET", "/readyz", 200, "ok"},
		{"POST", "/mend", 200, "ok"},
		{"GET", "/healthz", 200, "ok"},
		{"POST", "/unready", 200, "ok"},
		{"GET", "/readyz", 503, "no"},
		{"POST", "/ready", 200, "ok"},
		{"GET", "/readyz", 200, "ok"},
	} {
		if code, body := ask(t, step.method, url+step.path); code != step.code || body != step.body {
			t.Errorf("%s %s: %d %q, want %d %q", step.method, step.path, code, body, step.code, step.body)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(string(rest), "http: stopping on terminated\nhttp: stopped\n") {
		t.Errorf("stopped with %v, saying %q", err, rest)
	}
}

func TestExitCodes(t *testing.T) {
	url, cmd, out := start(t)
	ask(t, "POST", url+"/exit?code=3")
	_, _ = io.Copy(io.Discard, out)
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("asked to end with 3, ended with %d", cmd.ProcessState.ExitCode())
	}
	_, cmd, out = start(t, "-exit-after", "10ms", "-exit-code", "4")
	_, _ = io.Copy(io.Discard, out)
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("told to end with 4, ended with %d", cmd.ProcessState.ExitCode())
	}
}
