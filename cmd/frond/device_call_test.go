package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devices"
	api "github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/cloud/devicecall"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/edged/devices/methodcall"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// callPath is the way of a call: a cloudcore's listener with Kubernetes behind it, a hub, and a gateway with a mapper.
type callPath struct {
	*installedCluster
	// server and authority are cloudcore's.
	server, authority string
	// calls counts what the mapper was asked.
	calls atomic.Int32
}

func newCallPath(t *testing.T) *callPath {
	t.Helper()
	p := &callPath{installedCluster: newInstalledCluster(t)}
	p.mustRun("init")
	nc := streamstest.Connect(t, streamstest.Hub(t))
	dialer, err := tunnel.NewDialer(nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	kit.Must(t, err)
	streamstest.StartPart(t, dialer.Start)
	kit.Receive(t, "tunnels can be opened", dialer.Ready())
	p.startGateway(func() (*tunnel.Server, error) {
		return tunnel.NewServer("gw-1", nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	})
	p.startCloudcore(func(ctx context.Context, node, user string) (net.Conn, error) {
		conn, err := dialer.Dial(tunnel.WithLabel(ctx, user), node, config.EdgeDevicePort)
		if err != nil {
			return nil, err
		}
		return conn, nil
	})
	return p
}

// storedDevices reads Devices as a gateway's store has them.
type storedDevices struct{ p *callPath }

func (s storedDevices) Device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel) {
	o, err := s.p.devices(devices.DevicesResource).Get(s.p.t.Context(), id.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil
	}
	device := &devices.Device{}
	kit.Must(s.p.t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, device))
	return device, nil
}

// startGateway runs the part of gw-1 that serves calls, with a mapper in a process of the host.
func (p *callPath) startGateway(newTunnels func() (*tunnel.Server, error)) {
	p.t.Helper()
	mapper := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.calls.Add(1)
		switch {
		case strings.HasSuffix(r.URL.Path, "/13"):
			http.Error(w, "valve stuck", http.StatusInternalServerError)
		case strings.HasSuffix(r.URL.Path, "/99"):
			panic(http.ErrAbortHandler)
		default:
			_, _ = w.Write([]byte("asked for " + r.URL.Path))
		}
	}))
	p.t.Cleanup(mapper.Close)
	address, ok := mapper.Listener.Addr().(*net.TCPAddr)
	if !ok {
		p.t.Fatal("the mapper has no port")
	}
	tunnels, err := newTunnels()
	kit.Must(p.t, err)
	l, err := tunnels.Listen(config.EdgeDevicePort)
	kit.Must(p.t, err)
	identity := func(protocol string) string { return map[string]string{"virtual": "uid:0"}[protocol] }
	calls := methodcall.New(storedDevices{p}, methodcall.PodLocator{Identity: identity, HostPort: address.Port}, zaptest.NewLogger(p.t))
	streamstest.StartPart(p.t, tunnels.Start)
	streamstest.StartPart(p.t, func(ctx context.Context) error { return calls.Serve(ctx, l) })
	kit.Receive(p.t, "the gateway takes tunnels", tunnels.Ready())
}

// startCloudcore runs the listener with exactly cloudcore's rights to review users.
func (p *callPath) startCloudcore(dial devicecall.Dial) {
	p.t.Helper()
	dir := p.t.TempDir()
	ca, err := pki.NewAuthority(dir, "ca")
	kit.Must(p.t, err)
	pair, err := ca.Issue("serving", pki.Subject{Name: "cloudcore", Hosts: []string{api.ServerName}})
	kit.Must(p.t, err)
	users := filepath.Join(dir, "users.crt")
	kit.Must(p.t, os.WriteFile(users, sharedCluster.Cluster(p.t).Config().CAData, 0o600))
	kube, err := kubernetes.NewForConfig(sharedCluster.Cluster(p.t).ConfigWithRules(p.t, "frond-call-test", inspect.Rules()))
	kit.Must(p.t, err)
	l, err := new(net.ListenConfig).Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(p.t, err)
	address := l.Addr().String()
	kit.Must(p.t, l.Close())
	server := inspect.NewServer(inspect.Config{Address: address, CertFile: pair.Cert, KeyFile: pair.Key, ClientCAFile: users}, kube, nil, zaptest.NewLogger(p.t))
	nodeOf := func(ctx context.Context, id types.NamespacedName) (string, error) {
		o, err := p.devices(devices.DevicesResource).Get(ctx, id.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		node, _, err := unstructured.NestedString(o.Object, "spec", "nodeName")
		return node, err
	}
	server.Handle(devicecall.Pattern, devicecall.New(inspect.AccessReviewer{Kube: kube}, nodeOf, dial, zaptest.NewLogger(p.t)))
	streamstest.StartPart(p.t, server.Start)
	kit.Receive(p.t, "cloudcore listens", server.Ready())
	p.server, p.authority = "https://"+address, ca.Cert
}

// putMethods creates a Device with methods.
func (p *callPath) putMethods(name, node, protocol string) {
	p.t.Helper()
	kit.Succeeds(p.t, 30*time.Second, func() error { // the kind may be new
		_, err := p.devices(devices.DevicesResource).Create(p.t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": devices.GroupVersion().String(), "kind": "Device", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"nodeName": node, "protocol": map[string]any{"protocolName": protocol}, "properties": []any{map[string]any{"name": "setpoint"}},
				"methods": []any{map[string]any{"name": "adjust", "propertyNames": []any{"setpoint"}}},
			},
		}}, metav1.CreateOptions{})
		return err
	})
	p.t.Cleanup(func() {
		kit.Must(p.t, p.devices(devices.DevicesResource).Delete(context.WithoutCancel(p.t.Context()), name, metav1.DeleteOptions{}))
	})
}

// TestDevice_Call: a call goes through cloudcore, the hub and the gateway to the mapper of the device's protocol, by the rights of its user, and each
// outcome has its exit code.
func TestDevice_Call(t *testing.T) {
	p := newCallPath(t)
	p.putMethods("c1", "gw-1", "virtual")
	p.putMethods("c2", "gw-offline", "virtual")
	p.putMethods("c3", "gw-1", "modbus") // no mapper has it
	p.putMethods("c4", "", "virtual")
	rules := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{devices.Group}, Resources: []string{resource}, Verbs: []string{"create", "get", "patch"}}}
	}
	caller := kubeconfigOf(t, sharedCluster.Cluster(t).ConfigWithRules(t, "device-caller", rules("devices/call")))
	editor := kubeconfigOf(t, sharedCluster.Cluster(t).ConfigWithRules(t, "device-editor", rules("devices")))
	for name, tt := range map[string]struct {
		user string
		args []string
		code int
		says string
		sent int32
	}{
		"done":                {caller, []string{"c1", "adjust", "--data", "60"}, 0, "asked for /api/v1/devicemethod/default/c1/adjust/setpoint/60", 1},
		"as JSON":             {caller, []string{"c1", "adjust", "--data", "setpoint=60", "-o", "json"}, 0, `"outcome": "Answered"`, 1},
		"a failure":           {caller, []string{"c1", "adjust", "--data", "13"}, 3, "valve stuck", 1},
		"no answer":           {caller, []string{"c1", "adjust", "--data", "99"}, 5, "outcome unknown, the call may have been executed", 1},
		"no right":            {editor, []string{"c1", "adjust", "--data", "60"}, 1, `user "device-editor" may not create devices/call default/c1`, 0},
		"no such method":      {caller, []string{"c1", "stop", "--data", "60"}, 1, "it has: adjust", 0},
		"no such property":    {caller, []string{"c1", "adjust", "--data", "level=60"}, 1, "they are: setpoint", 0},
		"a path":              {caller, []string{"c1", "adjust", "--data", "../60"}, 1, "no slash", 0},
		"no such device":      {caller, []string{"none", "adjust", "--data", "60"}, 1, "there is no Device default/none", 0},
		"a gateway away":      {caller, []string{"c2", "adjust", "--data", "60"}, 4, "not sent: gateway not reached", 0},
		"no mapper":           {caller, []string{"c3", "adjust", "--data", "60"}, 4, `no mapper has registered protocol "modbus"`, 0},
		"no gateway":          {caller, []string{"c4", "adjust", "--data", "60"}, 4, "names no gateway", 0},
		"no value":            {caller, []string{"c1", "adjust"}, 1, "a method writes a value", 0},
		"too long a time":     {caller, []string{"c1", "adjust", "--data", "60", "--timeout", "1h"}, 1, "from 1ms to 25s", 0},
		"too large a request": {caller, []string{"c1", "adjust", "--data", strings.Repeat("6", 40<<10)}, 1, "too large", 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := p.calls.Load()
			args := append([]string{"device", "call", "--kubeconfig", tt.user, "--server", p.server, "--certificate-authority", p.authority, "-n", "default"}, tt.args...)
			code, out, errs := runFrond(args...)
			if code != tt.code || !strings.Contains(out+errs, tt.says) {
				t.Errorf("code %d, want %d, and %q in %q %q", code, tt.code, tt.says, out, errs)
			}
			if sent := p.calls.Load() - before; sent != tt.sent {
				t.Errorf("the mapper was asked %d times, want %d", sent, tt.sent)
			}
		})
	}
	if code, _, errs := runFrond("device", "call", "c1", "adjust", "--data", "60", "--kubeconfig", caller, "--server", "https://127.0.0.1:1", "-n", "default"); code != 1 {
		t.Errorf("no cloudcore: %d %s", code, errs)
	}
}
