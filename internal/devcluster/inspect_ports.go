package devcluster

import (
	"strings"

	"github.com/frond-edge/frond/internal/install"
)

// inspectPort names the port on which a cloudcore serves frond status and frond sync.
func inspectPort(cloudcore string) string { return cloudcore + "-inspect" }

// inspectURLs returns the inspection addresses of the cloudcores, in the format of FROND_CLOUDCORE.
func inspectURLs(s clusterState) string {
	var urls []string
	for _, name := range numberedNames("cloudcore", s.Spec.Cloudcores) {
		urls = append(urls, "https://"+loopbackAddress(s.Ports[inspectPort(name)]))
	}
	return strings.Join(urls, ",")
}

// Cloudcores returns the addresses of the cloudcores for frond status and frond sync, separated by commas.
func (c *Cluster) Cloudcores() string { return inspectURLs(c.state) }

// HubCA returns the file of the CAs that sign the certificates of the hub and the cloudcores.
func (c *Cluster) HubCA() string {
	return c.layout.secretFile(install.FolderAdmin, install.EntryBundle)
}
