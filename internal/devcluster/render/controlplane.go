package render

import (
	"fmt"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

const (
	serviceCIDR = "10.96.0.0/16"
	podCIDR     = "10.244.0.0/16"
	issuer      = "https://kubernetes.default.svc.cluster.local"
)

// EtcdFlags returns etcd's flags. etcd does not sync, because a development cluster need not survive a power cut. The writes of
// a killed etcd are in the kernel and survive.
func EtcdFlags(l folder.Layout, ports map[string]int) []string {
	p := l.PKIDir()
	client, peer := "https://"+folder.Loopback(ports["etcd"]), "https://"+folder.Loopback(ports["etcd-peer"])
	return []string{
		"--name=etcd",
		"--data-dir=" + l.Path("etcd"),
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

// APIServerFlags returns the flags of the apiserver.
func APIServerFlags(l folder.Layout, s folder.State) []string {
	p, ports := l.PKIDir(), s.Ports
	return append([]string{
		"--etcd-servers=https://" + folder.Loopback(ports["etcd"]),
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
func egressFlags(l folder.Layout, s folder.State) []string {
	if s.Spec.Direct {
		return nil
	}
	return []string{
		"--kubelet-preferred-address-types=" + names.AddressTunnel + ",Hostname,InternalIP",
		"--egress-selector-config-file=" + l.EgressFile(),
	}
}

// ControllerManagerFlags returns the flags. The client limits keep service account credentials from delaying every controller by 5 s.
func ControllerManagerFlags(l folder.Layout) []string {
	p := l.PKIDir()
	return []string{
		"--kubeconfig=" + l.Path("controller-manager.kubeconfig"),
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

// SchedulerFlags returns the flags of the scheduler.
func SchedulerFlags(l folder.Layout) []string {
	return []string{"--kubeconfig=" + l.Path("scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0"}
}

// WriteControlPlane makes the certificates and kubeconfigs of the Kubernetes control plane.
func WriteControlPlane(l folder.Layout, ports map[string]int) error {
	cluster, err := pki.NewAuthority(l.PKIDir(), "ca")
	if err != nil {
		return err
	}
	frontProxy, err := pki.NewAuthority(l.PKIDir(), "front-proxy-ca")
	if err != nil {
		return err
	}
	etcd, err := pki.NewAuthority(l.PKIDir(), "etcd-ca") // its own CA: a client of etcd can read every Secret
	if err != nil {
		return err
	}
	egress, err := pki.NewAuthority(l.PKIDir(), "egress-ca") // its own CA: its clients can reach every node's kubelet
	if err != nil {
		return err
	}
	if _, _, err := pki.SigningKeys(l.PKIDir(), "sa"); err != nil {
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
	if err := folder.WriteFile(l.EgressFile(), egressConfig(l, ports), 0o600); err != nil {
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
		if err := writeKubeconfig(l.Path(k.file), "https://"+folder.Loopback(ports["apiserver"]), cluster.Cert, certificateUser(pair)); err != nil {
			return err
		}
	}
	return writeCloudcore(l, ports, cluster)
}

// egressConfig routes the apiserver's requests to nodes, pods and services through the gateway of the cloudcores.
func egressConfig(l folder.Layout, ports map[string]int) []byte {
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
`, folder.Loopback(ports["egress"]), l.PKIDir()+"/egress-ca.crt", l.PKIDir()+"/apiserver-egress.crt", l.PKIDir()+"/apiserver-egress.key")
}
