package dmi_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// as returns the context of a call of a pod; "" is a process outside pods.
func as(ctx context.Context, pod types.UID, uid int) context.Context {
	return grpcpeer.NewContext(ctx, &grpcpeer.Peer{AuthInfo: peer.Info{Peer: peer.Peer{PID: 7, UID: uint32(uid), Pod: pod}}})
}

func report(ctx context.Context, g *gateway, device string) codes.Code {
	_, err := g.server.Service().ReportDeviceStates(ctx, &dmipb.ReportDeviceStatesRequest{DeviceNamespace: "default", DeviceName: device, State: "ok"})
	return status.Code(err)
}

func registerAs(ctx context.Context, g *gateway, protocol string) codes.Code {
	_, err := g.server.Service().MapperRegister(ctx, &dmipb.MapperRegisterRequest{
		WithData: true, Mapper: &dmipb.MapperInfo{Name: "m", Protocol: protocol, Address: []byte(filepath.Join(g.dir, protocol+".sock"))},
	})
	return status.Code(err)
}

// TestService_WhoMayDoWhat: the Authorizer decides who registers, and only who has registered a protocol reports for its devices.
func TestService_WhoMayDoWhat(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("default/b", "opcua", "1")
	g.start()
	ctx, me := t.Context(), os.Geteuid()
	for _, step := range []struct {
		name      string
		got, want codes.Code
	}{
		{"a call without a peer", registerAs(ctx, g, "modbus"), codes.Unauthenticated},
		{"a pod that may not", registerAs(as(ctx, "b", me), g, "modbus"), codes.PermissionDenied},
		{"another protocol", registerAs(as(ctx, "a", me), g, "opcua"), codes.PermissionDenied},
		{"another user of the host", registerAs(as(ctx, "", me+1), g, "modbus"), codes.PermissionDenied},
		{"a report of a pod that may not, before any registration", report(as(ctx, "b", me), g, "a"), codes.PermissionDenied},
		{"a report of the pod that may, before its registration", report(as(ctx, "a", me), g, "a"), codes.OK},
		{"the pod that may", registerAs(as(ctx, "a", me), g, "modbus"), codes.OK},
		{"its report", report(as(ctx, "a", me), g, "a"), codes.OK},
		{"its report for a device of another protocol", report(as(ctx, "a", me), g, "b"), codes.PermissionDenied},
		{"a report of another pod", report(as(ctx, "b", me), g, "a"), codes.PermissionDenied},
		{"a report of the host for a pod's device", report(as(ctx, "", me), g, "a"), codes.PermissionDenied},
		{"the host for itself", registerAs(as(ctx, "", me), g, "opcua"), codes.OK},
		{"its report", report(as(ctx, "", me), g, "b"), codes.OK},
		{"the newest registration wins", registerAs(as(ctx, "", me), g, "modbus"), codes.OK},
		{"so the one before is refused", report(as(ctx, "a", me), g, "a"), codes.PermissionDenied},
	} {
		if step.got != step.want {
			t.Errorf("%s: %v, want %v", step.name, step.got, step.want)
		}
	}
}

// TestService_HostIsOff: without the setting no process outside pods is a mapper.
func TestService_HostIsOff(t *testing.T) {
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.AllowHost = false }
	g.start()
	client, conn := dialManager(t, g.dir)
	defer conn.Close() //nolint:errcheck // nothing was written
	_, err := client.MapperRegister(t.Context(), &dmipb.MapperRegisterRequest{Mapper: &dmipb.MapperInfo{Protocol: "x", Address: []byte(g.dir + "/x.sock")}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a process of the host: %v", err)
	}
}

// TestServer_SocketOfAnother: devices go only to the process of the mapper that registered, not to who has put a socket in its place.
func TestServer_SocketOfAnother(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.start()
	if code := registerAs(as(t.Context(), "a", os.Geteuid()), g, "modbus"); code != codes.OK {
		t.Fatal(code)
	}
	thief := &testMapper{t: t, dir: g.dir, protocol: "modbus", models: map[string]*dmipb.DeviceModel{}, devices: map[string]*dmipb.Device{}, updates: map[string]int{}, changed: map[string]time.Time{}}
	thief.listen()
	g.setDevice("default/a", "modbus", "secret")
	eventually(t, "that the mapper cannot be reached", func() bool { return g.twin.reason("default/a") == mapper.ReasonMapperUnreachable })
	if thief.device("default/a") != nil {
		t.Error("a process that has not registered got the device")
	}
}

// startIn starts a server in a folder, and returns its error: nil if it became ready.
func startIn(t *testing.T, dir string) error {
	t.Helper()
	g := newGateway(t)
	server, err := dmi.New(dmi.Config{Dir: dir, AllowHost: true}, g.twin, denyAll{}, g.store, g.twin, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	select {
	case <-server.Ready():
		info, err := os.Lstat(filepath.Join(dir, mapper.SocketName))
		if err != nil || info.Mode().Perm() != 0o660 || info.Mode().Type() != os.ModeSocket {
			t.Errorf("the socket: %v, %v", info, err)
		}
		cancel()
		return <-ended
	case err := <-ended:
		cancel()
		return err
	}
}

// TestServer_Folder: which folders and sockets are taken, and which are left alone.
func TestServer_Folder(t *testing.T) {
	socketIn := func(t *testing.T, dir string, closed bool) {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, mapper.SocketName), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if l.SetUnlinkOnClose(false); closed {
			_ = l.Close()
			return
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, dir string) string
		fails   bool
		remains string
	}{
		"a new folder":    {prepare: func(_ *testing.T, dir string) string { return filepath.Join(dir, "a", "b") }},
		"a stale socket":  {prepare: func(t *testing.T, dir string) string { t.Helper(); socketIn(t, dir, true); return dir }},
		"a living socket": {prepare: func(t *testing.T, dir string) string { t.Helper(); socketIn(t, dir, false); return dir }, fails: true},
		"a file": {prepare: func(t *testing.T, dir string) string {
			t.Helper()
			write(t, filepath.Join(dir, mapper.SocketName))
			return dir
		}, fails: true, remains: mapper.SocketName},
		"a link in place of the socket": {prepare: func(t *testing.T, dir string) string {
			t.Helper()
			write(t, filepath.Join(dir, "victim"))
			link(t, filepath.Join(dir, "victim"), filepath.Join(dir, mapper.SocketName))
			return dir
		}, fails: true, remains: "victim"},
		"a link in place of the temporary name": {prepare: func(t *testing.T, dir string) string {
			t.Helper()
			write(t, filepath.Join(dir, "victim"))
			link(t, filepath.Join(dir, "victim"), filepath.Join(dir, "."+mapper.SocketName))
			return dir
		}, remains: "victim"},
		"a link in place of the folder": {prepare: func(t *testing.T, dir string) string {
			t.Helper()
			target, place := filepath.Join(dir, "target"), filepath.Join(dir, "place")
			if err := os.Mkdir(target, 0o755); err != nil {
				t.Fatal(err)
			}
			link(t, target, place)
			return place
		}, fails: true},
		"a folder that each may write to": {prepare: func(t *testing.T, dir string) string {
			t.Helper()
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			return dir
		}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir := tt.prepare(t, top)
			if err := startIn(t, dir); (err != nil) != tt.fails {
				t.Errorf("Start: %v", err)
			}
			if tt.remains != "" {
				if raw, err := os.ReadFile(filepath.Join(top, tt.remains)); err != nil || string(raw) != "mine" {
					t.Errorf("%s: %q, %v", tt.remains, raw, err)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, mapper.SocketName)); !tt.fails && err == nil {
				t.Error("the socket is left behind")
			}
		})
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
