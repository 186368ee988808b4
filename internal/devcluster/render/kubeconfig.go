package render

import (
	"fmt"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// writeKubeconfig writes a kubeconfig of this user. Certificates and keys are embedded, so that it may be copied.
func writeKubeconfig(path, server, caFile string, user clientcmdapi.AuthInfo) error {
	const name = "frond-dev"
	k := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthority: caFile}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: &user},
		CurrentContext: name,
	}
	if err := clientcmdapi.FlattenConfig(&k); err != nil {
		return fmt.Errorf("read for kubeconfig: %w", err)
	}
	data, err := clientcmd.Write(k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	if err := renameio.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// certificateUser is the user of a client certificate.
func certificateUser(pair pki.Pair) clientcmdapi.AuthInfo {
	return clientcmdapi.AuthInfo{ClientCertificate: pair.Cert, ClientKey: pair.Key}
}

// CloudcoreToken returns the file with the token of cloudcore's service account.
func CloudcoreToken(l folder.Layout) string { return l.Path("cloudcore.token") }

// writeCloudcore writes the kubeconfig of the cloudcores. Their rights are those of deploy/rbac, as in any installation.
func writeCloudcore(l folder.Layout, ports map[string]int, ca *pki.Authority) error {
	return writeKubeconfig(l.Path("cloudcore.kubeconfig"), "https://"+folder.Loopback(ports["apiserver"]), ca.Cert,
		clientcmdapi.AuthInfo{TokenFile: CloudcoreToken(l)})
}
