// Package mosquittotest runs mosquitto, the MQTT broker that most gateways have, as a child of a test.
package mosquittotest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/test/kit"
)

// Broker is a mosquitto with a folder of its own: it keeps its sessions over Stop and Start.
type Broker struct {
	// Addr is host:port, which stays the same.
	Addr    string
	t       testing.TB
	program string
	config  string
	child   *exec.Cmd
}

// find finds mosquitto, "" if it is missing; Debian has it in /usr/sbin, which is not in each user's PATH.
func find() string {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Installed reports whether there is a mosquitto, for a test that is useful without one. If REQUIRE names root, it fails instead.
func Installed(t testing.TB) bool {
	t.Helper()
	if find() == "" {
		t.Log("no mosquitto (package mosquitto)")
		failIfRequired(t)
		return false
	}
	return true
}

func failIfRequired(t testing.TB) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
		t.Fatal("REQUIRE names root: no mosquitto (package mosquitto)")
	}
}

func program(t testing.TB) string {
	t.Helper()
	if path := find(); path != "" {
		return path
	}
	failIfRequired(t)
	t.Skip("no mosquitto (package mosquitto)")
	return ""
}

// Start runs a mosquitto that lets everybody in, with more lines of its configuration.
func Start(t testing.TB, lines ...string) *Broker {
	t.Helper()
	b := &Broker{t: t, program: program(t)}
	ports, err := kit.FreePorts(1)
	kit.Must(t, err)
	b.Addr = fmt.Sprintf("127.0.0.1:%d", ports[0])
	dir := t.TempDir()
	b.config = filepath.Join(dir, "mosquitto.conf")
	config := append([]string{
		fmt.Sprintf("listener %d 127.0.0.1", ports[0]), "allow_anonymous true", "persistence true", "persistence_location " + dir + "/",
		"autosave_interval 1", "autosave_on_changes true", "user root", "log_dest none",
	}, lines...)
	kit.Must(t, os.WriteFile(b.config, []byte(strings.Join(config, "\n")+"\n"), 0o600))
	b.Start()
	t.Cleanup(b.Stop)
	return b
}

// Start starts it again after Stop, and waits until it listens.
func (b *Broker) Start() {
	b.t.Helper()
	b.child = exec.CommandContext(context.WithoutCancel(b.t.Context()), b.program, "-c", b.config) // Stop ends it
	kit.Must(b.t, b.child.Start())
	kit.Succeeds(b.t, 10*time.Second, func() error {
		conn, err := (&net.Dialer{}).DialContext(b.t.Context(), "tcp", b.Addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Kill ends it as a crash would: what it has not saved is lost. Start starts it again from what it saved last.
func (b *Broker) Kill() {
	_ = b.child.Process.Kill() // it may have ended
	_ = b.child.Wait()         // of a signal
	b.child = nil
}

// Stop ends it in order: it saves what it has.
func (b *Broker) Stop() {
	if b.child == nil {
		return
	}
	_ = b.child.Process.Signal(os.Interrupt) // it may have ended
	_ = b.child.Wait()                       // of a signal
	b.child = nil
}
