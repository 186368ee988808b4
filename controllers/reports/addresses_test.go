package reports_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/reports"
)

func TestANodeHasItsOwnNameOnly(t *testing.T) {
	ip := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
	six := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::1"}
	own := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "gw-1"}
	tunnel := corev1.NodeAddress{Type: wire.AddressTunnel, Address: wire.TunnelAddress("gw-1").String()}
	other := corev1.NodeAddress{Type: wire.AddressTunnel, Address: wire.TunnelAddress("gw-2").String()}
	for name, tt := range map[string]struct{ reported, want []corev1.NodeAddress }{
		"as a kubelet says": {[]corev1.NodeAddress{ip, six, own}, []corev1.NodeAddress{ip, six, own, tunnel}},
		"no name":           {[]corev1.NodeAddress{ip}, []corev1.NodeAddress{ip, own, tunnel}},
		"another's name":    {[]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "gw-2"}, ip, other}, []corev1.NodeAddress{ip, own, tunnel}},
		"a name of DNS":     {[]corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "kubernetes.default.svc"}}, []corev1.NodeAddress{own, tunnel}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, reports.OwnAddresses(reports.Ways{}, "gw-1", tt.reported)); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}
