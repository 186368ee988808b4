package devcluster

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/install"
)

// Addresses tells where a cluster and its components are.
type Addresses struct{ f *folder.Folder }

// Dir returns the cluster's folder.
func (a *Addresses) Dir() string { return a.f.Layout.Dir }

// Spec returns the cluster's size and kind.
func (a *Addresses) Spec() Spec { return a.f.State.Spec }

// Env returns the path of the shell settings.
func (a *Addresses) Env() string { return a.f.Layout.Path("env") }

// Kubeconfig returns the path of the admin's kubeconfig.
func (a *Addresses) Kubeconfig() string { return a.f.Layout.KubeconfigFile() }

// NATSContext returns the path of the admin's context file for the nats CLI.
func (a *Addresses) NATSContext() string { return a.f.Layout.Path("nats", "context.json") }

// Cloudcores returns the addresses of the cloudcores for frond status and frond sync, separated by commas.
func (a *Addresses) Cloudcores() string { return render.InspectURLs(a.f.State) }

// HubCA returns the file of the CAs that sign the certificates of the hub and the cloudcores.
func (a *Addresses) HubCA() string {
	return a.f.Layout.SecretFile(install.FolderAdmin, install.EntryBundle)
}

// Scrape returns the URL at which Prometheus reads the gateways' metrics, and the file of the CA of its certificate.
func (a *Addresses) Scrape() (url, caFile string) {
	return "https://" + folder.Loopback(a.f.State.Ports["scrape"]), filepath.Join(a.f.Layout.PKIDir(), "egress-ca.crt")
}

// Egress returns the URL at which the apiserver opens connections to nodes, and its client certificates for there and for kubelets.
func (a *Addresses) Egress() (url string, secret *tls.Config, err error) {
	secret, err = request.ClientTLS(filepath.Join(a.f.Layout.PKIDir(), "egress-ca.crt"), filepath.Join(a.f.Layout.PKIDir(), "apiserver-egress"))
	if err != nil {
		return "", nil, err
	}
	kubelet, err := request.ClientTLS(filepath.Join(a.f.Layout.PKIDir(), "ca.crt"), filepath.Join(a.f.Layout.PKIDir(), "kubelet-client"))
	if err != nil {
		return "", nil, err
	}
	ca, err := os.ReadFile(filepath.Join(a.f.Layout.PKIDir(), "ca.crt"))
	if err != nil {
		return "", nil, fmt.Errorf("read authority: %w", err)
	}
	secret.RootCAs.AppendCertsFromPEM(ca)
	secret.Certificates = append(secret.Certificates, kubelet.Certificates...) // each server names the CA that it accepts
	return "https://" + folder.Loopback(a.f.State.Ports["egress"]), secret, nil
}
