// Package mappertest builds and runs the mapper of test/mapper, which is built on KubeEdge's published framework.
package mappertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds the mapper; root is the repository as seen from the test's folder.
func Build(t testing.TB, root string) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "mapper")
	cmd := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(root, "test", "mapper"), "build", "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the mapper: %v: %s", err, output)
	}
	return binary
}

// WriteConfig writes the configuration of a mapper of the protocol virtual, with the folder of edgecore's socket. It has no REST server.
func WriteConfig(t testing.TB, dir string) (file string) {
	t.Helper()
	return WriteConfigWithREST(t, dir, 0)
}

// WriteConfigWithREST is WriteConfig for a mapper with a REST server on a port.
func WriteConfigWithREST(t testing.TB, dir string, port int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	content := fmt.Sprintf("grpc_server:\n  socket_path: %[1]s/m.sock\ncommon:\n  name: m\n  version: v1\n  api_version: v1\n  protocol: virtual\n  address: x\n"+
		"  edgecore_sock: %[1]s/dmi.sock\n  http_port: \"%[2]d\"\n", dir, port)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Start runs a mapper until kill or the end of the test. It fails the test if the mapper ends by itself.
func Start(t testing.TB, binary, config string) (kill func()) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "mapper.log")
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "--config-file", config, "--v", "1")
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		select {
		case err := <-ended:
			said, _ := os.ReadFile(log) // what there is
			t.Errorf("the mapper ended by itself: %v\n%s", err, said)
		default:
			_ = cmd.Process.Kill() // it may just have ended
			if err := <-ended; err == nil {
				t.Error("the mapper ended by itself")
			}
		}
		_ = output.Close() // the process has ended
	}
	t.Cleanup(kill)
	return kill
}
