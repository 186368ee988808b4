package devcluster

import (
	"strings"

	"github.com/frond-edge/frond/internal/install"
)

// inspectPort names the port on which a cloudcore answers frond status and frond sync.
func inspectPort(cloudcore string) string { return cloudcore + "-inspect" }

// inspectURLs are where the cloudcores answer, as FROND_CLOUDCORE takes them.
func inspectURLs(s clusterState) string {
	var urls []string
	for _, name := range numberedNames("cloudcore", s.Spec.Cloudcores) {
		urls = append(urls, "https://"+loopbackAddress(s.Ports[inspectPort(name)]))
	}
	return strings.Join(urls, ",")
}

// Cloudcores are the addresses of the cloudcores for frond status and frond sync, separated by commas.
func (c *Cluster) Cloudcores() string { return inspectURLs(c.state) }

// HubCA is the file of the authorities that sign what the hub and the cloudcores show.
func (c *Cluster) HubCA() string {
	return c.layout.secretFile(install.FolderAdmin, install.EntryBundle)
}
