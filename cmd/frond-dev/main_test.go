package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit/clitest"
)

// runFrondDev runs a command line in this process.
func runFrondDev(args ...string) (code int, stdout, stderr string) {
	return clitest.Run(newRoot(), args...)
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args    []string
		code    int
		out     string
		problem string
	}{
		"help":               {args: []string{"--help"}, out: "frond dev [command]"},
		"hidden wan":         {args: []string{"wan", "--config", filepath.Join(dir, "none")}, code: 1, problem: "read configuration"},
		"unknown, deeper":    {args: []string{"--dir", dir, "grow"}, code: 1, problem: `unknown command "grow" for "frond dev"`},
		"no cluster":         {args: []string{"status", "--dir", dir}, code: 1, problem: "no cluster here: start one with frond dev up"},
		"down of nothing":    {args: []string{"down", "--dir", dir}, code: 1, problem: "no cluster here"},
		"output":             {args: []string{"status", "-o", "xml", "--dir", dir}, code: 1, problem: "choose json"},
		"device, no cluster": {args: []string{"device", "start", "boiler", "--dir", dir}, code: 1, problem: "no cluster here"},
		"device, no name":    {args: []string{"device", "start", "--dir", dir}, code: 1, problem: "accepts 1 arg"},
		"hidden sensor":      {args: []string{"sensor", "--config", filepath.Join(dir, "none")}, code: 1, problem: "read configuration"},
		"store words":        {args: []string{"store", "edge-1", "get", "--dir", dir}, code: 1, problem: "write EDGE list"},
		"hubs":               {args: []string{"up", "--hubs", "2", "--runtime", "hollow", "--dir", dir}, code: 1, problem: "choose 1 or 3"},
		"too long a path":    {args: []string{"up", "--runtime", "hollow", "--dir", "/tmp/" + strings.Repeat("x", 60)}, code: 1, problem: "choose one of up to"},
		"programs missing":   {args: []string{"up", "--runtime", "hollow", "--programs", "/none", "--dir", shortDir(t)}, code: 1, problem: "read programs"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runFrondDev(tt.args...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.problem) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d, %q, %q", code, out, errs, tt.code, tt.out, tt.problem)
			}
			if code != 0 && out != "" {
				t.Errorf("an error wrote to stdout: %q", out)
			}
		})
	}
}

// shortDir returns a temporary folder with a path short enough for a cluster.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "frond") //nolint:usetesting // t.TempDir's path is too long for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestDevUp_PortInUse gives a cluster a port that another process has taken since.
func TestDevUp_PortInUse(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	dir := shortDir(t)
	state := `{"spec":{"edges":1,"cloudcores":1,"hubs":1,"runtime":"hollow"},"ports":{"apiserver":` + strconv.Itoa(port) + `}}`
	for file, data := range map[string]string{"state.json": state, "programs.json": `{"Kube":"/k","NatsServer":"/n","Frond":"/f"}`} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, _, errs := runFrondDev("up", "--dir", dir, "--programs", filepath.Join(dir, "programs.json"))
	if want := "apiserver: port " + strconv.Itoa(port) + " is in use"; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("code %d, stderr %q, want %q", code, errs, want)
	}
	if code, _, errs := runFrondDev("down", "--dir", dir); code != 0 {
		t.Errorf("down: %s", errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "state.json")); !os.IsNotExist(err) {
		t.Errorf("down left state.json: %v", err)
	}
}

func TestParseKey(t *testing.T) {
	for args, want := range map[[2]string]wire.Key{
		{"configmap", "default/web"}:                 {Resource: "configmaps", Namespace: "default", Name: "web"},
		{"Pods", "a/b"}:                              {Resource: "pods", Namespace: "a", Name: "b"},
		{"node", "edge-1"}:                           {Resource: "nodes", Name: "edge-1"},
		{"runtimeclass.node.k8s.io", "x"}:            {Group: "node.k8s.io", Resource: "runtimeclasses", Name: "x"},
		{"endpointslices.discovery.k8s.io", "a/b-c"}: {Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "a", Name: "b-c"},
	} {
		if diff := cmp.Diff(want, parseKey(args[0], args[1])); diff != "" {
			t.Errorf("%v (-want +got):\n%s", args, diff)
		}
	}
}
