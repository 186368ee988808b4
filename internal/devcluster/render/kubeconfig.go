package render

import (
	"encoding/base64"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// kubeconfig is the subset of a kubeconfig file that is needed here; the keys are upstream's.
type kubeconfig struct {
	APIVersion     string          `json:"apiVersion"`
	Kind           string          `json:"kind"`
	Clusters       []namedCluster  `json:"clusters"`
	Contexts       []namedContext  `json:"contexts"`
	CurrentContext string          `json:"current-context"`
	Users          []namedAuthInfo `json:"users"`
}

type namedCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server string `json:"server"`
		CA     string `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type namedContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

type namedAuthInfo struct {
	Name string `json:"name"`
	User struct {
		Cert string `json:"client-certificate-data,omitempty"`
		Key  string `json:"client-key-data,omitempty"`
		// TokenFile replaces the client certificate and key.
		TokenFile string `json:"tokenFile,omitempty"`
	} `json:"user"`
}

// writeKubeconfig writes a kubeconfig with embedded certificates, so that it may be copied.
func writeKubeconfig(path, server, caFile string, pair pki.Pair) error {
	k := newKubeconfig(server)
	return k.write(path, map[string]*string{
		caFile: &k.Clusters[0].Cluster.CA, pair.Cert: &k.Users[0].User.Cert, pair.Key: &k.Users[0].User.Key,
	})
}

func newKubeconfig(server string) kubeconfig {
	const name = "frond-dev"
	k := kubeconfig{APIVersion: "v1", Kind: "Config", CurrentContext: name}
	k.Clusters = []namedCluster{{Name: name}}
	k.Contexts = []namedContext{{Name: name}}
	k.Users = []namedAuthInfo{{Name: name}}
	k.Clusters[0].Cluster.Server = server
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = name, name
	return k
}

// write fills fields with the contents of files and writes the kubeconfig.
func (k *kubeconfig) write(path string, files map[string]*string) error {
	for file, field := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read for kubeconfig: %w", err)
		}
		*field = base64.StdEncoding.EncodeToString(data)
	}
	data, err := yaml.Marshal(k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	if err := renameio.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// CloudcoreToken returns the file with the token of cloudcore's service account.
func CloudcoreToken(l folder.Layout) string { return l.Path("cloudcore.token") }

// writeCloudcore writes the kubeconfig of the cloudcores. Their rights are those of deploy/rbac, as in any installation.
func writeCloudcore(l folder.Layout, ports map[string]int, ca *pki.Authority) error {
	k := newKubeconfig("https://" + folder.Loopback(ports["apiserver"]))
	k.Users[0].User.TokenFile = CloudcoreToken(l)
	return k.write(l.Path("cloudcore.kubeconfig"), map[string]*string{ca.Cert: &k.Clusters[0].Cluster.CA})
}
