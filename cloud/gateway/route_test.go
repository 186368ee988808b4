package gateway_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

func (w *gatewayFixture) Claims(_ context.Context, address netip.Addr) ([]gateway.Claim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claims[address.String()], nil
}

func (w *gatewayFixture) Endpoints(_ context.Context, to netip.AddrPort) (string, []gateway.Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if endpoints, ok := w.services[to.String()]; ok {
		return "default/hook", slices.Clone(endpoints), nil
	}
	return "", nil, nil
}

func (w *gatewayFixture) Dial(ctx context.Context, node string, port uint16) (net.Conn, error) {
	return w.dialServer(ctx, tunnel.Addr{Node: node, Port: port})
}

func (w *gatewayFixture) DialAddress(ctx context.Context, node string, to netip.AddrPort) (net.Conn, error) {
	return w.dialServer(ctx, tunnel.Addr{Node: node, Address: to.Addr(), Port: to.Port()})
}

// parseClaim parses a claim in short form: "range edge-1". Nodes whose name begins with "edge" are gateways.
func parseClaim(text string) gateway.Claim {
	kind, node, _ := strings.Cut(text, " ")
	kinds := map[string]gateway.ClaimKind{"range": gateway.ClaimRange, "pod": gateway.ClaimPod, "host": gateway.ClaimHost}
	return gateway.Claim{Kind: kinds[kind], Node: node, Edge: strings.HasPrefix(node, "edge")}
}

func TestRouteByClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		claims  []string
		trusted bool
		node    string // "" is dialled directly from cloudcore
		refused string
	}{
		"nobody's":                               {nil, false, "", ""},
		"a pod of a gateway":                     {[]string{"range edge-1", "pod edge-1"}, false, "edge-1", ""},
		"a pod that the cloud does not know yet": {[]string{"range edge-1"}, false, "edge-1", ""},
		"a pod of the cloud":                     {[]string{"range cloud-1", "pod cloud-1"}, false, "", ""},

		// False reports of a gateway neither attract addresses nor take them away.
		"lie: another gateway's pod":              {[]string{"range edge-1", "pod edge-1", "pod edge-2"}, false, "edge-1", ""},
		"lie: another gateway's range, no pod":    {[]string{"range edge-1", "pod edge-2"}, false, "edge-1", ""},
		"lie: another gateway's pod is its host":  {[]string{"range edge-1", "pod edge-1", "host edge-2"}, false, "edge-1", ""},
		"lie: the cloud's pod":                    {[]string{"range cloud-1", "pod cloud-1", "pod edge-2"}, false, "", ""},
		"lie: the cloud's range":                  {[]string{"range cloud-1", "pod edge-2"}, false, "", ""},
		"lie: the cloud's pod without a range":    {[]string{"pod cloud-1", "pod edge-2"}, false, "", ""},
		"lie: a host of the cloud":                {[]string{"host cloud-1", "pod edge-2", "host edge-2"}, false, "", ""},
		"lie: what Kubernetes does not know":      {[]string{"pod edge-2"}, false, "", ""},
		"lie: a host that Kubernetes knows not":   {[]string{"host edge-2"}, false, "", ""},
		"lie: the cloud's pod, trusted":           {[]string{"pod cloud-1", "pod edge-2"}, true, "", ""},
		"lie: a host of the cloud, trusted":       {[]string{"host cloud-1", "host edge-2"}, true, "", ""},
		"lie: another's podCIDR, trusted network": {[]string{"range edge-1", "pod edge-2"}, true, "edge-1", ""},

		// Kubernetes itself has assigned an address twice.
		"two gateways' ranges": {[]string{"range edge-2", "range edge-1", "pod edge-1"}, false, "", "the podCIDRs of Nodes edge-1, edge-2 overlap; give each Node a podCIDR of its own"},
		"a gateway's range in the cloud's": {
			[]string{"range edge-1", "range cloud-1"}, false, "", "the podCIDRs of Nodes edge-1, cloud-1 overlap",
		},
		"two ranges of the cloud":                     {[]string{"range cloud-1", "range cloud-2"}, false, "", ""},
		"a pod of the cloud in a gateway's range":     {[]string{"range edge-1", "pod cloud-1"}, false, "", ""},
		"pods of both in a gateway's range":           {[]string{"range edge-1", "pod edge-1", "pod cloud-1"}, false, "", "pods of Nodes edge-1, cloud-1 have it"},
		"a host of the cloud in a gateway's range":    {[]string{"range edge-1", "pod edge-1", "host cloud-1"}, false, "", ""},
		"a gateway's pod and a lie in cloud's ranges": {[]string{"range edge-1", "range cloud-1", "pod edge-2"}, false, "", "edge-1, cloud-1"},

		// Trusted networks, in which gateways report their own addresses.
		"trusted: a pod":                     {[]string{"pod edge-1"}, true, "edge-1", ""},
		"trusted: two pods of one gateway":   {[]string{"pod edge-1", "pod edge-1"}, true, "edge-1", ""},
		"trusted: a host":                    {[]string{"host edge-1"}, true, "edge-1", ""},
		"trusted: nobody's":                  {nil, true, "", ""},
		"trusted: pods of two":               {[]string{"pod edge-2", "pod edge-1"}, true, "", "Nodes edge-1, edge-2 report it; give gateways podCIDRs and host addresses that do not overlap"},
		"trusted: a pod and another's host":  {[]string{"pod edge-2", "host edge-1"}, true, "", "Nodes edge-1, edge-2 report it"},
		"trusted: hosts of more than a line": {[]string{"host edge-1", "host edge-2", "host edge-3", "host edge-4", "host edge-5"}, true, "", "edge-1, edge-2, edge-3, edge-4 and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			var claims []gateway.Claim
			for _, text := range tt.claims {
				claims = append(claims, parseClaim(text))
			}
			node, err := gateway.RouteByClaims(netip.MustParseAddr("10.244.1.7"), claims, tt.trusted)
			if node != tt.node {
				t.Errorf("leads to %q, want %q", node, tt.node)
			}
			refused := ""
			if err != nil {
				refused = err.Error()
			}
			if (refused == "") != (tt.refused == "") || !strings.Contains(refused, tt.refused) {
				t.Errorf("refused %q, want %q", refused, tt.refused)
			}
		})
	}
}

func TestRouteByEndpoints(t *testing.T) {
	at := func(node string, ready bool) gateway.Endpoint {
		return gateway.Endpoint{Node: node, Address: netip.MustParseAddrPort("10.244.1.7:8443"), Ready: ready}
	}
	for name, tt := range map[string]struct {
		endpoints []gateway.Endpoint
		want      []gateway.Endpoint
		refused   string
	}{
		"none":                           {nil, nil, ""},
		"in the cloud":                   {[]gateway.Endpoint{at("", true)}, nil, ""},
		"in the cloud, not ready":        {[]gateway.Endpoint{at("", false), at("edge-1", true)}, nil, ""},
		"one of a gateway, one of cloud": {[]gateway.Endpoint{at("edge-1", true), at("", true)}, nil, ""},
		"on gateways": {
			[]gateway.Endpoint{at("edge-1", true), at("edge-2", true), at("edge-1", false), at("offline-1", true)},
			[]gateway.Endpoint{at("edge-1", true), at("edge-2", true)},
			"",
		},
		"no more than are tried": {
			[]gateway.Endpoint{at("edge-1", true), at("edge-2", true), at("edge-3", true), at("edge-4", true)},
			[]gateway.Endpoint{at("edge-1", true), at("edge-2", true), at("edge-3", true)},
			"",
		},
		"many, and one in the cloud": {
			[]gateway.Endpoint{at("edge-1", true), at("edge-2", true), at("edge-3", true), at("edge-4", true), at("", false)}, nil, "",
		},
		"none is ready":     {[]gateway.Endpoint{at("edge-1", false)}, nil, "Service default/hook has no ready endpoint; all its endpoints are on gateways"},
		"none is connected": {[]gateway.Endpoint{at("offline-2", true), at("offline-1", true), at("edge-1", false)}, nil, "only on gateways that are not connected: offline-1, offline-2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := gateway.RouteByEndpoints("default/hook", tt.endpoints, func(node string) bool { return strings.HasPrefix(node, "edge") })
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("refused %v, want %q", err, tt.refused)
			}
		})
	}
}

// newPodFixture creates a gateway in front of two edge nodes, each with a pod that greets with its name, and a Service of both.
func newPodFixture(t *testing.T, cfg gateway.Config) (*gatewayFixture, string) {
	t.Helper()
	w, _, _ := newSocketFixture(t)
	w.setNode("edge-2", gateway.Node{UID: "two", Edge: true})
	w.servers["edge-1/10.244.1.7:80"], w.servers["edge-2/10.244.2.7:8443"] = startEcho(t, "edge-1 "), startEcho(t, "edge-2 ")
	w.claims = map[string][]gateway.Claim{
		"10.244.1.7": {parseClaim("range edge-1"), parseClaim("pod edge-1"), parseClaim("pod edge-2")},
		"10.244.3.7": {parseClaim("range edge-1"), parseClaim("range edge-2")},
		"127.0.0.1":  {parseClaim("pod edge-2")},
	}
	w.services = map[string][]gateway.Endpoint{
		"10.96.0.9:443": {{Node: "edge-2", Address: netip.MustParseAddrPort("10.244.2.7:8443"), Ready: true}},
	}
	cfg.Socket = socketPath(t)
	startGateway(t, cfg, w, nil)
	return w, cfg.Socket
}

func TestGateway_DialsPodsOfGateways(t *testing.T) {
	w, socket := newPodFixture(t, gateway.Config{})
	_, port, _ := net.SplitHostPort(startEcho(t, ""))
	w.servers["edge-2/127.0.0.1:"+port] = startEcho(t, "the thief ")
	outside := startEcho(t, "outside ")
	for target, greeting := range map[string]string{
		"10.244.1.7:80":           "edge-1 ",
		"[::ffff:10.244.1.7]:80":  "edge-1 ",
		"10.96.0.9:443":           "edge-2 ",
		outside:                   "outside ", // although edge-2 reports it as one of its pods
		"localhost" + outside[9:]: "outside ",
	} {
		conn := dialUnix(t, socket)
		r, refused := requestConnect(t, conn, target)
		if refused != "" {
			t.Errorf("%s: %s", target, refused)
			continue
		}
		got := make([]byte, len(greeting))
		if _, err := r.Read(got); err != nil || string(got) != greeting {
			t.Errorf("%s greets with %q, %v", target, got, err)
		}
		checkEcho(t, conn, r, "hello")
	}
}

func TestGateway_PodRefusalNamesTheReason(t *testing.T) {
	w, socket := newPodFixture(t, gateway.Config{})
	refused := func(target string, parts ...string) {
		t.Helper()
		_, why := requestConnect(t, dialUnix(t, socket), target)
		for _, part := range parts {
			if !strings.Contains(why, part) {
				t.Errorf("%s: %q lacks %q", target, why, part)
			}
		}
	}
	refused("10.244.3.7:80", "503", "address 10.244.3.7 is not unique", "edge-1, edge-2")
	refused("10.244.1.7:81", "502", "node edge-1 refused 10.244.1.7:81")
	w.failDials(&tunnel.RefusedError{Node: "edge-1", Address: netip.MustParseAddr("10.244.1.7"), Port: 80, Code: protocol.CodeVersion, Text: "unknown version"})
	refused("10.244.1.7:80", "502", "edgecore on node edge-1 is too old for connections to pods, upgrade it")
	w.failDials(tunnel.ErrOffline)
	refused("10.244.1.7:80", "503", "node edge-1 does not answer")
	refused("10.96.0.9:443", "503", "node edge-2 does not answer")
	w.setNode("edge-2", gateway.Node{UID: "two", Edge: true, Offline: true})
	refused("10.96.0.9:443", "503", "Service default/hook has ready endpoints only on gateways that are not connected: edge-2")
}
