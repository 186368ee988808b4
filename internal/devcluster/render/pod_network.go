package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/frond-edge/frond/internal/devcluster/folder"
)

// podNetworkFile is the name of the CNI configuration that containerd makes from its template.
const podNetworkFile = "10-containerd-net.conflist"

// podNetworkTemplateText is the template of a gateway's CNI configuration. containerd fills in the podCIDR of the Node when the kubelet
// calls UpdateRuntimeConfig, so that the addresses of pods are unique in the cluster.
// A bare Debian has no iptables. Without it pods keep their address towards the wan, where nothing answers them anyway.
// hostPort works with nft instead, and does not work where both are missing.
func podNetworkTemplateText(ipam string, iptables, nft bool) ([]byte, error) {
	type object = map[string]any
	plugins := []object{{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": iptables,
		"ipam": object{
			"type": "host-local", "dataDir": ipam, "ranges": [][]object{{{"subnet": "{{.PodCIDR}}"}}},
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	if iptables || nft { // the plugin selects one of the two
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true})
	}
	data, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": "edge", "plugins": plugins}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode pod network: %w", err)
	}
	return append(data, '\n'), nil
}

// writePodNetworkTemplate writes the template from which containerd makes the CNI configuration. The configuration itself is on the
// gateway's disk: a gateway that boots without a link has its last podCIDR at once.
func writePodNetworkTemplate(e folder.Gateway) error {
	// Addresses are allocated below run: after a reboot no pod has an address, so the allocations must be gone too.
	text, err := podNetworkTemplateText(filepath.Join(e.Run, "ipam"), programInstalled("iptables"), programInstalled("nft"))
	if err != nil {
		return err
	}
	return folder.WriteFile(e.PodNetworkTemplate(), text, 0o644)
}

// RemoveStalePodNetwork removes a gateway's CNI configuration if it is for another range than podCIDR, which happens when the Node was
// deleted and registered again: containerd never replaces a configuration that it can load. Without a Node, "", every range is stale.
// No pod of the gateway may run.
func RemoveStalePodNetwork(e folder.Gateway, podCIDR string) error {
	path := filepath.Join(e.PodNetworkDir(), podNetworkFile)
	subnet, err := PodNetworkSubnet(e)
	if errors.Is(err, fs.ErrNotExist) || err == nil && subnet == podCIDR {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale pod network: %w", err)
	}
	return nil
}

// PodNetworkSubnet returns the address range of a CNI configuration made from our template.
func PodNetworkSubnet(e folder.Gateway) (string, error) {
	path := filepath.Join(e.PodNetworkDir(), podNetworkFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read pod network: %w", err)
	}
	var conf struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return "", fmt.Errorf("read pod network %s: %w", path, err)
	}
	for _, plugin := range conf.Plugins {
		for _, set := range plugin.IPAM.Ranges {
			for _, r := range set {
				return r.Subnet, nil
			}
		}
	}
	return "", fmt.Errorf("read pod network %s: it has no address range", path)
}
