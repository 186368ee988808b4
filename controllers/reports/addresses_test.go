package reports_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/reports"
)

func TestNodeAddressing_OwnNameOnly(t *testing.T) {
	ip := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	six := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::1"}
	own := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "gw-1"}
	tunnel := corev1.NodeAddress{Type: names.AddressTunnel, Address: wire.TunnelAddress("gw-1").String()}
	other := corev1.NodeAddress{Type: names.AddressTunnel, Address: wire.TunnelAddress("gw-2").String()}
	for name, tt := range map[string]struct{ reported, want []corev1.NodeAddress }{
		"as a kubelet says": {[]corev1.NodeAddress{ip, six, own}, []corev1.NodeAddress{ip, six, own, tunnel}},
		"no name":           {[]corev1.NodeAddress{ip}, []corev1.NodeAddress{ip, own, tunnel}},
		"another's name":    {[]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "gw-2"}, ip, other}, []corev1.NodeAddress{ip, own, tunnel}},
		"a name of DNS":     {[]corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "kubernetes.default.svc"}}, []corev1.NodeAddress{own, tunnel}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, reports.MergeAddresses(reports.NodeAddressing{}, "gw-1", tt.reported)); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeAddressing_ConfiguredHosts(t *testing.T) {
	address := func(kind corev1.NodeAddressType, a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: a}
	}
	own, outside := address(corev1.NodeInternalIP, "10.0.0.1"), address(corev1.NodeExternalIP, "192.0.2.7")
	tunnel := address(names.AddressTunnel, wire.TunnelAddress("gw-1").String())
	port := func(node string) (uint16, bool) { return 30001, node == "gw-1" }
	for name, tt := range map[string]struct {
		ways reports.NodeAddressing
		node string
		want []corev1.NodeAddress
		port int32
	}{
		"metrics": {reports.NodeAddressing{MetricsHost: "m"}, "gw-1", []corev1.NodeAddress{own, outside, address(corev1.NodeHostName, "gw-1"), tunnel, address(names.AddressMetrics, "m")}, 10350},
		"direct": {
			reports.NodeAddressing{DirectHost: "10.9.9.9", Port: port},
			"gw-1",
			[]corev1.NodeAddress{address(corev1.NodeInternalIP, "10.9.9.9"), own, address(corev1.NodeHostName, "10.9.9.9"), tunnel},
			30001,
		},
		"direct by a name": {reports.NodeAddressing{DirectHost: "nodes.test", Port: port}, "gw-1", []corev1.NodeAddress{address(corev1.NodeHostName, "nodes.test"), tunnel}, 30001},
		"no port yet": {
			reports.NodeAddressing{DirectHost: "10.9.9.9", Port: port},
			"gw-2",
			[]corev1.NodeAddress{address(names.AddressTunnel, wire.TunnelAddress("gw-2").String())},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, reports.MergeAddresses(tt.ways, tt.node, []corev1.NodeAddress{own, outside})); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			var reported corev1.NodeDaemonEndpoints
			reported.KubeletEndpoint.Port = 10350
			if got := reports.DaemonEndpoints(tt.ways, tt.node, reported); got.KubeletEndpoint.Port != tt.port {
				t.Errorf("port %d, want %d", got.KubeletEndpoint.Port, tt.port)
			}
		})
	}
}

func TestNodeAddressing_MetricsPathAnnotation(t *testing.T) {
	on, off := reports.NodeAddressing{MetricsHost: "m"}, reports.NodeAddressing{}
	const path = "/nodes/gw-1/kubelet/metrics/resource"
	said := reports.MergeAnnotations(on, "gw-1", map[string]string{"a": "b", names.AnnotationMetricsPath: "/nodes/gw-2/kubelet/metrics/resource"})
	if diff := cmp.Diff(map[string]string{"a": "b", names.AnnotationMetricsPath: path}, said); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "b"}, reports.MergeAnnotations(off, "gw-1", said)); diff != "" {
		t.Errorf("switched off (-want +got):\n%s", diff)
	}
	if len(said) != 2 {
		t.Errorf("the Node of the cache was changed: %v", said)
	}
}
