package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/test/kit/clitest"
)

// startFakeEdgecore starts a gateway's local API on a unix socket: it has one pod, whose container is another one after a restart.
func startFakeEdgecore(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	container := "old"
	pod := func() map[string]any {
		return map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web", "namespace": "shop", "resourceVersion": "7"},
			"status": map[string]any{"containerStatuses": []any{map[string]any{
				"name": "main", "containerID": "containerd://" + container, "restartCount": 4, "state": map[string]any{"running": map[string]any{}},
			}}},
		}
	}
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /api", func(w http.ResponseWriter, _ *http.Request) {
		say(w, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
	})
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, _ *http.Request) {
		say(w, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{}})
	})
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		say(w, map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{map[string]any{
			"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": []string{"get", "list", "watch"},
		}}})
	})
	mux.HandleFunc("GET /api/v1/namespaces/shop/pods/web", func(w http.ResponseWriter, _ *http.Request) { say(w, pod()) })
	mux.HandleFunc("GET /api/v1/namespaces/shop/pods", func(w http.ResponseWriter, req *http.Request) {
		if req.FormValue("watch") != "" {
			say(w, map[string]any{"type": "ADDED", "object": pod()})
			return
		}
		say(w, map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{}, "items": []any{pod()}})
	})
	mux.HandleFunc("POST /frond/pods/shop/web/restart", func(w http.ResponseWriter, req *http.Request) {
		if req.FormValue("container") == "none" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":400,"reason":"BadRequest","message":"it has no such container"}`))
			return
		}
		container = "new"
		say(w, []any{map[string]any{"container": "main", "id": "old"}})
	})
	server := httptest.NewUnstartedServer(mux)
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return path
}

func TestEdge(t *testing.T) {
	socket := startFakeEdgecore(t)
	t.Setenv("FROND_SOCKET", socket)
	for name, tt := range map[string]struct {
		args string
		code int
		out  string
		says string // on stderr
	}{
		"names":                    {"get pods -n shop -o name", 0, "pod/web\n", ""},
		"yaml":                     {"get pod web -n shop -o jsonpath={.metadata.resourceVersion}", 0, "7", ""},
		"not there":                {"get pod none -n shop", 1, "", "Error from server (NotFound)"},
		"no such kind":             {"get cabbages", 1, "", `the server doesn't have a resource type "cabbages"`},
		"nothing to exec":          {"exec web -n shop", 1, "", "you must specify at least one command"},
		"restart":                  {"restart web -n shop", 0, "shop/web main: stopped as old, runs as new, restart 4\n", ""},
		"restart of a wrong one":   {"restart pod/web -n shop -c none", 1, "", "it has no such container"},
		"no socket":                {"get pods --socket /nonexistent/api.sock", 1, "", "edgecore does not run here"},
		"restart without a socket": {"restart web --socket /nonexistent/api.sock", 1, "", "edgecore does not run here"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := clitest.Run(NewCommand(), strings.Fields(tt.args)...)
			if code != tt.code || out != tt.out || !strings.Contains(errs, tt.says) {
				t.Errorf("code %d, %q, %q; want %d, %q, %q", code, out, errs, tt.code, tt.out, tt.says)
			}
		})
	}
}

func TestEdge_WithoutEdgecore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // as kill -9 leaves it
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := (&edgeAPI{socket: path}).checkSocket(t.Context()); err == nil || !strings.Contains(err.Error(), "edgecore does not run") {
		t.Errorf("a socket that nobody serves: %v", err)
	}
}

func TestEdge_SocketOfAnotherUser(t *testing.T) {
	socket := startFakeEdgecore(t)
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func() error { return (&edgeAPI{socket: socket}).checkSocket(context.WithoutCancel(t.Context())) }
	errs := make(chan error, 1)
	go func() {
		// Root drops its rights only for files that one thread opens. The thread must not end: its children would be killed.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if os.Geteuid() == 0 {
			if err := unix.Setfsuid(65534); err != nil {
				errs <- fmt.Errorf("become nobody: %w", err)
				return
			}
			defer func() {
				if err := unix.Setfsuid(0); err != nil {
					panic(err)
				}
			}()
		} else if err := os.Chmod(socket, 0); err != nil {
			errs <- err
			return
		}
		errs <- ask()
	}()
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "you may not open") {
		t.Errorf("nobody opens a socket of mode 0600: %v", err)
	}
}
