package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// HolderScript makes a mount namespace in which / is shared, which mount propagation of pods requires. It gives the gateway
// private copies of host folders and keeps running, so that other processes can enter the namespace.
func HolderScript(e folder.Gateway) string {
	var script strings.Builder
	script.WriteString("set -e\nmount --make-rshared /\n")
	private := e.PrivateMounts()
	for _, host := range slices.Sorted(maps.Keys(private)) {
		_, _ = fmt.Fprintf(&script, "mkdir -p %[1]q %[2]q\nmount --bind %[2]q %[1]q\n", host, private[host])
	}
	_, _ = fmt.Fprintf(&script, "echo held > %q\nexec sleep infinity\n", e.HolderReadyFile())
	return script.String()
}

// WriteWan writes the forwarder's configuration and reports whether it changed.
func WriteWan(l folder.Layout, s folder.State) (changed bool, err error) {
	cfg := wan.Config{Control: l.WanSocket()}
	edges, hubs := folder.Names("edge", s.Spec.Edges), folder.Names("hub", s.Spec.Hubs)
	if s.Spec.Runtime == folder.Containerd {
		cfg.Namespace = wan.Network{Prefix: folder.ID(l.Dir)}.Wan()
		cfg.Edges = map[string]string{}
		for i, e := range edges {
			cfg.Edges[wan.Address(i+1)] = e
		}
	}
	for _, h := range hubs {
		target := folder.Loopback(s.Ports[h+"-leaf"])
		if s.Spec.Runtime == folder.Containerd {
			cfg.Routes = append(cfg.Routes, wan.Route{Listen: fmt.Sprintf("%s:%d", wan.Gateway, s.Ports[h+"-leaf"]), Target: target})
			continue
		}
		for _, e := range edges {
			cfg.Routes = append(cfg.Routes, wan.Route{Listen: folder.Loopback(s.Ports[e+"-"+h]), Target: target, Edge: e})
		}
	}
	data, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return false, fmt.Errorf("encode wan: %w", err)
	}
	if old, err := os.ReadFile(l.WanConfig()); err == nil && string(old) == string(data) {
		return false, nil
	}
	return true, folder.WriteFile(l.WanConfig(), data, 0o600)
}

// leafURLs are the addresses of the hub's leaf listeners for a gateway, through the wan.
func leafURLs(s folder.State, edge string) []string {
	var urls []string
	for _, h := range folder.Names("hub", s.Spec.Hubs) {
		if s.Spec.Runtime == folder.Containerd {
			urls = append(urls, fmt.Sprintf("tls://%s:%d", wan.Gateway, s.Ports[h+"-leaf"]))
		} else {
			urls = append(urls, "tls://"+folder.Loopback(s.Ports[edge+"-"+h]))
		}
	}
	return urls
}
