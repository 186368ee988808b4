package config_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

const cloudCore = `
id: a
hub: {urls: ["nats://a:1"], nkeyFile: n, caFile: c, certFile: c, keyFile: k}
gateway: `

func TestGateway_RequiresFilesOfAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		gateway string
		faults  []string
	}{
		"off":            {"{}", nil},
		"a socket alone": {"{socket: /run/a}", nil},
		"an address": {"{address: 'a:1', certFile: c}", []string{
			"gateway.clientCAFile: required", "gateway.keyFile: required",
		}},
		"no address": {"{address: a, certFile: c, keyFile: k, clientCAFile: a}", []string{"gateway.address: address a: missing port in address"}},
		"scrapes": {"{scrapeAddress: 'a:1', certFile: c, keyFile: k}", []string{
			"gateway.kubeletCAFile: required", "gateway.kubeletCertFile: required", "gateway.kubeletKeyFile: required",
		}},
		"nothing for metrics-server": {"{metricsHost: a}", []string{"gateway.scrapeAddress: required"}},
		"trusted networks":           {"{trustedNetworks: [10.20.0.0/16, 'fd00:1::/64']}", nil},
		"no network":                 {"{trustedNetworks: [b]}", []string{"gateway.trustedNetworks: netip.ParsePrefix(\"b\"): no '/'"}},
		"all addresses trusted": {"{trustedNetworks: ['::/0']}", []string{
			"gateway.trustedNetworks: a network of all addresses would let a gateway take any; name the networks of gateways",
		}},
		"ports": {"{direct: {host: a, ports: ['30000-30010', '5'], from: [10.1.0.0/16]}}", nil},
		"ports for everybody": {"{direct: {host: a, ports: ['5']}}", []string{
			"gateway.direct.from: required: the networks of the apiservers, such as 10.1.0.0/16",
		}},
		"no ports": {"{direct: {host: a, from: [b], listen: c, keyFile: d}}", []string{
			"gateway.direct.ports: required", "gateway.direct.from: netip.ParsePrefix(\"b\"): no '/'",
			"gateway.direct.listen: ParseAddr(\"c\"): unable to parse IP", "gateway.direct: certFile and keyFile come together",
		}},
		"a range backwards": {"{direct: {host: a, ports: ['9-8'], from: [10.1.0.0/16]}}", []string{`gateway.direct.ports: "9-8" is no range of ports`}},
		"no port":           {"{direct: {host: a, ports: ['70000'], from: [10.1.0.0/16]}}", []string{`gateway.direct.ports: "70000" is no range of ports`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.ParseCloudCore([]byte(cloudCore+tt.gateway), "host")
			got := ""
			if err != nil {
				got = err.Error()
			}
			if want := strings.Join(tt.faults, "\n"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestEdgeCore_KubeletListensOnLoopback(t *testing.T) {
	edge := "node: a\ndir: /d\nruntime: {hollow: true}\nhub: {urls: ['tls://a:1']}\n"
	c, err := config.ParseEdgeCore([]byte(edge))
	if err != nil || c.Kubelet.Address != "127.0.0.1" || c.Kubelet.Port != 10250 {
		t.Errorf("%+v, %v", c.Kubelet, err)
	}
	if _, err := config.ParseEdgeCore([]byte(edge + "kubelet: {port: 10281}\n")); err == nil {
		t.Error("a kubelet on the port of edgecore's metrics is taken")
	}
}
