// Package mappertest builds and runs the programs of test/mapper: a mapper that is built on KubeEdge's published framework, and a Modbus device.
package mappertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/test/kit"
)

// Build builds the mapper; root is the repository as seen from the test's folder.
func Build(t testing.TB, root string) (binary string) {
	t.Helper()
	return build(t, root, ".")
}

func build(t testing.TB, root, pkg string) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(root, "test", "mapper"), "build", "-o", binary, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s of the mapper: %v: %s", pkg, err, output)
	}
	return binary
}

// WriteConfig writes the configuration of a mapper of the protocol virtual, with the folder of edgecore's socket. It has no REST server.
func WriteConfig(t testing.TB, dir string) (file string) {
	t.Helper()
	return writeConfig(t, dir, "virtual", 0)
}

// WriteProtocolConfig is WriteConfig for a protocol, virtual or modbus.
func WriteProtocolConfig(t testing.TB, dir, protocol string) (file string) {
	t.Helper()
	return writeConfig(t, dir, protocol, 0)
}

// WriteConfigWithREST is WriteConfig for a mapper with a REST server on a port.
func WriteConfigWithREST(t testing.TB, dir string, port int) (file string) {
	t.Helper()
	return writeConfig(t, dir, "virtual", port)
}

func writeConfig(t testing.TB, dir, protocol string, port int) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	content := fmt.Sprintf("grpc_server:\n  socket_path: %[1]s/%[2]s.sock\ncommon:\n  name: %[2]s\n  version: v1\n  api_version: v1\n  protocol: %[2]s\n  address: x\n"+
		"  edgecore_sock: %[1]s/dmi.sock\n  http_port: \"%[3]d\"\n", dir, protocol, port)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Start runs a mapper until kill or the end of the test. It fails the test if the mapper ends by itself.
func Start(t testing.TB, binary, config string) (kill func()) {
	t.Helper()
	return Run(t, binary, config).Kill
}

// StartSimulator builds and runs a Modbus device until the end of the test, and returns its address.
func StartSimulator(t testing.TB, root string) (address string, p *Process) {
	t.Helper()
	ports, err := kit.FreePorts(1)
	kit.Must(t, err)
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	p = startProcess(t, build(t, root, "./simulator"), address)
	kit.Within(t, time.Minute, "the Modbus device listens", func() bool { return p.Output() != "" })
	return address, p
}

// Process is a mapper, or a Modbus device. Its methods may be called by one goroutine.
type Process struct {
	// Kill kills it; it fails the test if the process has ended by itself. The end of the test does it, too.
	Kill func()
	t    testing.TB
	log  string
}

// Run is Start, for a test that reads what the mapper prints.
func Run(t testing.TB, binary, config string) *Process {
	t.Helper()
	return startProcess(t, binary, "--config-file", config, "--v", "1")
}

// Output returns what the process has printed so far.
func (p *Process) Output() string {
	p.t.Helper()
	said, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(said)
}

func startProcess(t testing.TB, binary string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, log: filepath.Join(t.TempDir(), "log")}
	output, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.Kill = sync.OnceFunc(func() {
		select {
		case err := <-ended:
			t.Errorf("%s ended by itself: %v\n%s", filepath.Base(binary), err, p.Output())
		default:
			_ = cmd.Process.Kill() // it may just have ended
			if err := <-ended; err == nil {
				t.Error("the process ended by itself")
			}
		}
		_ = output.Close() // the process has ended
	})
	t.Cleanup(p.Kill)
	return p
}
