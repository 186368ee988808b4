package devcluster

import (
	"fmt"
	"path/filepath"
)

// MirrorRegistry has a gateway's containerd pull the images of a registry from a server that it reaches by plain HTTP at this address.
// It counts from the next pull on; an empty folder of registries is what Up leaves.
func (c *Cluster) MirrorRegistry(edge, registry, address string) error {
	if err := c.mustBeEdge(edge); err != nil {
		return err
	}
	hosts := fmt.Sprintf("server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	return writeFile(filepath.Join(c.layout.edgeFiles(edge).registryDir(), registry, "hosts.toml"), []byte(hosts), 0o644)
}
