package devcluster

import (
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// inspectPort names the port on which a cloudcore answers frond status and frond sync.
func inspectPort(cloudcore string) string { return cloudcore + "-inspect" }

// inspectConfig lets a cloudcore answer users of the cluster.
func inspectConfig(l layout, s state, cloudcore string) config.Inspect {
	return config.Inspect{
		Address:  loopback(s.Ports[inspectPort(cloudcore)]),
		CertFile: l.in(cloudcore, "serving.crt"), KeyFile: l.in(cloudcore, "serving.key"),
		ClientCAFile: filepath.Join(l.pki(), "ca.crt"),
	}
}

// issueInspect makes the serving certificate of a cloudcore.
func issueInspect(ca *pki.Authority, l layout, cloudcore string) error {
	_, err := ca.IssueIn(l.in(cloudcore), "serving", pki.Subject{Name: cloudcore, Hosts: []string{inspect.ServerName}})
	return err
}

// inspectURLs are where the cloudcores answer, as FROND_CLOUDCORE takes them.
func inspectURLs(s state) string {
	var urls []string
	for _, name := range numbered("cloudcore", s.Spec.Cloudcores) {
		urls = append(urls, "https://"+loopback(s.Ports[inspectPort(name)]))
	}
	return strings.Join(urls, ",")
}

// Cloudcores are the addresses of the cloudcores for frond status and frond sync, separated by commas.
func (c *Cluster) Cloudcores() string { return inspectURLs(c.state) }
