package devcluster

import (
	"encoding/base64"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

const (
	serviceCIDR = "10.96.0.0/16"
	podCIDR     = "10.244.0.0/16"
	issuer      = "https://kubernetes.default.svc.cluster.local"
)

// etcdFlags returns etcd's flags. etcd does not sync, because a development cluster need not survive a power cut. The writes of
// a killed etcd are in the kernel and survive.
func etcdFlags(l clusterLayout, ports map[string]int) []string {
	p := l.pkiDir()
	client, peer := "https://"+loopbackAddress(ports["etcd"]), "https://"+loopbackAddress(ports["etcd-peer"])
	return []string{
		"--name=etcd",
		"--data-dir=" + l.path("etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--cert-file=" + p + "/etcd.crt", "--key-file=" + p + "/etcd.key",
		"--client-cert-auth", "--trusted-ca-file=" + p + "/etcd-ca.crt",
		"--peer-cert-file=" + p + "/etcd.crt", "--peer-key-file=" + p + "/etcd.key",
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + p + "/etcd-ca.crt",
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func apiserverFlags(l clusterLayout, s clusterState) []string {
	p, ports := l.pkiDir(), s.Ports
	return append([]string{
		"--etcd-servers=https://" + loopbackAddress(ports["etcd"]),
		"--etcd-cafile=" + p + "/etcd-ca.crt",
		"--etcd-certfile=" + p + "/apiserver-etcd.crt", "--etcd-keyfile=" + p + "/apiserver-etcd.key",
		// No client uses the advertised address, but a loopback one would leave the Service default/kubernetes without endpoints.
		"--bind-address=127.0.0.1", "--advertise-address=192.0.2.1",
		fmt.Sprintf("--secure-port=%d", ports["apiserver"]),
		"--service-cluster-ip-range=" + serviceCIDR,
		"--tls-cert-file=" + p + "/apiserver.crt", "--tls-private-key-file=" + p + "/apiserver.key",
		"--client-ca-file=" + p + "/ca.crt",
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + p + "/sa.pub", "--service-account-signing-key-file=" + p + "/sa.key",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--enable-bootstrap-token-auth",
		"--kubelet-client-certificate=" + p + "/kubelet-client.crt", "--kubelet-client-key=" + p + "/kubelet-client.key",
		"--kubelet-certificate-authority=" + p + "/ca.crt",
		"--requestheader-client-ca-file=" + p + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p + "/front-proxy-client.crt", "--proxy-client-key-file=" + p + "/front-proxy-client.key",
	}, egressFlags(l, s)...)
}

// egressFlags returns the apiserver's flags for its route to nodes. Two gateways may have the same host address, so each node is
// called by a tunnel address of its own, whose route only cloudcores know. Direct mode needs no flag.
func egressFlags(l clusterLayout, s clusterState) []string {
	if s.Spec.Direct {
		return nil
	}
	return []string{
		"--kubelet-preferred-address-types=" + wire.AddressTunnel + ",Hostname,InternalIP",
		"--egress-selector-config-file=" + l.egressFile(),
	}
}

// controllerManagerFlags returns the flags. The client limits keep service account credentials from delaying every controller by 5 s.
func controllerManagerFlags(l clusterLayout) []string {
	p := l.pkiDir()
	return []string{
		"--kubeconfig=" + l.path("controller-manager.kubeconfig"),
		"--use-service-account-credentials",
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--leader-elect=false",
		"--kube-api-qps=1000", "--kube-api-burst=2000",
		"--service-account-private-key-file=" + p + "/sa.key",
		"--root-ca-file=" + p + "/ca.crt",
		"--cluster-signing-cert-file=" + p + "/ca.crt", "--cluster-signing-key-file=" + p + "/ca.key",
		"--cluster-cidr=" + podCIDR, "--allocate-node-cidrs=true",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--secure-port=0",
	}
}

func schedulerFlags(l clusterLayout) []string {
	return []string{"--kubeconfig=" + l.path("scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0"}
}

// writeControlPlane makes the certificates and kubeconfigs of the Kubernetes control plane.
func writeControlPlane(l clusterLayout, ports map[string]int) error {
	cluster, err := pki.NewAuthority(l.pkiDir(), "ca")
	if err != nil {
		return err
	}
	frontProxy, err := pki.NewAuthority(l.pkiDir(), "front-proxy-ca")
	if err != nil {
		return err
	}
	etcd, err := pki.NewAuthority(l.pkiDir(), "etcd-ca") // its own CA: a client of etcd can read every Secret
	if err != nil {
		return err
	}
	egress, err := pki.NewAuthority(l.pkiDir(), "egress-ca") // its own CA: its clients can reach every node's kubelet
	if err != nil {
		return err
	}
	if _, _, err := pki.SigningKeys(l.pkiDir(), "sa"); err != nil {
		return err
	}
	here := []string{"127.0.0.1", "::1", "localhost"}
	for _, c := range []struct {
		by   *pki.Authority
		name string
		pki.Subject
	}{
		{etcd, "etcd", pki.Subject{Name: "etcd", Hosts: here}},
		{etcd, "apiserver-etcd", pki.Subject{Name: "kube-apiserver"}},
		{cluster, "apiserver", pki.Subject{Name: "kube-apiserver", Hosts: append(here, "10.96.0.1", "kubernetes",
			"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")}},
		{cluster, "kubelet-client", pki.Subject{Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}},
		{frontProxy, "front-proxy-client", pki.Subject{Name: "front-proxy-client"}},
		{egress, "apiserver-egress", pki.Subject{Name: "kube-apiserver"}},
		{egress, "gateway", pki.Subject{Name: "frond-gateway", Hosts: here}},
		{cluster, "kubelet-scrape", pki.Subject{Name: "frond:gateway"}}, // deploy/rbac has its role
	} {
		if _, err := c.by.Issue(c.name, c.Subject); err != nil {
			return err
		}
	}
	if err := writeFile(l.egressFile(), egressConfig(l, ports), 0o600); err != nil {
		return err
	}
	for _, k := range []struct {
		file string
		pki.Subject
	}{
		{"kubeconfig", pki.Subject{Name: "kubernetes-admin", Groups: []string{"system:masters"}}},
		{"controller-manager.kubeconfig", pki.Subject{Name: "system:kube-controller-manager"}},
		{"scheduler.kubeconfig", pki.Subject{Name: "system:kube-scheduler"}},
	} {
		pair, err := cluster.Issue("client-"+k.file, k.Subject)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(l.path(k.file), "https://"+loopbackAddress(ports["apiserver"]), cluster.Cert, pair); err != nil {
			return err
		}
	}
	return writeCloudcore(l, ports, cluster)
}

// egressConfig routes the apiserver's requests to nodes, pods and services through the gateway of the cloudcores.
func egressConfig(l clusterLayout, ports map[string]int) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: https://%s
        tlsConfig:
          caBundle: %q
          clientCert: %q
          clientKey: %q
`, loopbackAddress(ports["egress"]), l.pkiDir()+"/egress-ca.crt", l.pkiDir()+"/apiserver-egress.crt", l.pkiDir()+"/apiserver-egress.key")
}

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
