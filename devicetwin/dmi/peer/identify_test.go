package peer_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// accept starts a program that connects to a socket, and returns the connection.
func accept(t *testing.T, command func(path string) *exec.Cmd) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	cmd := command(path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := listener.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, cmd
}

// connector runs this test again as a program that connects and stays.
func connector(t *testing.T) func(path string) *exec.Cmd {
	t.Helper()
	return func(path string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConnector$")
		cmd.Env = append(os.Environ(), "CONNECT="+path)
		return cmd
	}
}

// TestConnector is the program of connector.
func TestConnector(t *testing.T) {
	path := os.Getenv("CONNECT")
	if path == "" {
		return
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 1)) // until the other end closes
}

// TestIdentify_NamesTheProcess: the peer is the process that connected, with its user.
func TestIdentify_NamesTheProcess(t *testing.T) {
	conn, cmd := accept(t, connector(t))
	got, err := peer.Identify(conn, "")
	if err != nil {
		t.Fatal(err)
	}
	if int(got.PID) != cmd.Process.Pid || int(got.UID) != os.Getuid() || got.Identity() != "uid:"+strconv.Itoa(os.Getuid()) {
		t.Errorf("peer %+v, want process %d of user %d", got, cmd.Process.Pid, os.Getuid())
	}
	_ = conn.Close()
	_ = cmd.Wait()
}

// TestIdentify_EndedProcess: what ended is nobody; its number may be another's by now.
func TestIdentify_EndedProcess(t *testing.T) {
	conn, cmd := accept(t, connector(t))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got, err := peer.Identify(conn, ""); err == nil {
		t.Errorf("peer %+v of a process that has ended", got)
	}
}

// TestCredentials_CountConnections: a connection counts from its handshake until it is closed, once.
func TestCredentials_CountConnections(t *testing.T) {
	client, server := socketPair(t)
	open := 0
	c := &peer.Credentials{Admit: func(identity string) (func(), error) {
		if identity != "uid:"+strconv.Itoa(os.Getuid()) {
			t.Errorf("identity %q", identity)
		}
		open++
		return func() { open-- }, nil
	}}
	conn, info, err := c.ServerHandshake(server)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := info.(peer.Info); !ok || got.Err != nil || int(got.Peer.PID) != os.Getpid() || got.SecurityLevel != credentials.PrivacyAndIntegrity || open != 1 {
		t.Errorf("info %+v, %d connections", info, open)
	}
	_ = conn.Close()
	_ = conn.Close()
	if open != 0 {
		t.Errorf("%d connections after closing", open)
	}
	c.Admit = func(string) (func(), error) { return nil, errors.New("too many") }
	if _, _, err := c.ServerHandshake(client); err == nil {
		t.Error("a connection that was not admitted is served")
	}
}

func socketPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		t.Cleanup(func() { _ = conns[i].Close() })
	}
	return conns[0], conns[1]
}
