package devcluster

import (
	"fmt"
	"path/filepath"
)

// MirrorRegistry makes a gateway's containerd pull the images of a registry from a server at this address, over plain HTTP.
// It takes effect at the next pull. Up leaves the folder of registries empty.
func (c *Cluster) MirrorRegistry(edge, registry, address string) error {
	if err := c.mustBeEdge(edge); err != nil {
		return err
	}
	hosts := fmt.Sprintf("server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	return writeFile(filepath.Join(c.layout.edgeFiles(edge).registryDir(), registry, "hosts.toml"), []byte(hosts), 0o644)
}
