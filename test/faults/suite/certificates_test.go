package suite_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/install"
)

// path returns a path below the cluster's folder.
func (r *testCluster) path(elem ...string) string {
	return filepath.Join(append([]string{r.cluster.Dir()}, elem...)...)
}

// replaceCertificates replaces the certificates of the hub and the cloudcores, and waits until they serve the new ones.
func (r *testCluster) replaceCertificates(t *testing.T) {
	t.Helper()
	r.runInstall(t, "init", "--rotate-certificates")
	authority, err := pki.NewAuthority(r.path("pki"), "egress-ca") // the administrator's own
	if err != nil {
		t.Fatal(err)
	}
	fresh := reissueCertificate(t, authority, r.path("pki"), "gateway")
	url, _, err := r.cluster.Egress()
	if err != nil {
		t.Fatal(err)
	}
	r.awaitServedCertificate(t, strings.TrimPrefix(url, "https://"), fresh)
}

// runInstall runs a command that writes certificates of the hub and the cloudcores, syncs them, and waits until they are served.
func (r *testCluster) runInstall(t *testing.T, args ...string) {
	t.Helper()
	if err := r.runFrond(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
	r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Sync(t.Context()) })
	for i, hub := range []string{"hub-1", "hub-2", "hub-3"} {
		r.awaitServedCertificate(t, leafAddress(t, r.path(hub, "nats-server.conf")), r.installedCertificate(t, install.FolderHub(i)))
	}
	for url := range strings.SplitSeq(r.cluster.Cloudcores(), ",") {
		r.awaitServedCertificate(t, strings.TrimPrefix(url, "https://"), r.installedCertificate(t, install.FolderCloudcore))
	}
}

// installedCertificate returns the last certificate of frond init for a folder.
func (r *testCluster) installedCertificate(t *testing.T, folder string) *x509.Certificate {
	t.Helper()
	cert, err := certs.ReadCertificate(r.path(names.Namespace, folder, install.EntryCert))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func mustReadFile(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// leafAddress returns the leaf listener's address in a hub's configuration.
func leafAddress(t *testing.T, file string) string {
	t.Helper()
	_, leafs, _ := strings.Cut(string(mustReadFile(t, file)), "leafnodes {")
	_, address, found := strings.Cut(leafs, `listen: "`)
	if address, _, _ = strings.Cut(address, `"`); !found {
		t.Fatalf("no leaf listener in %s", file)
	}
	return address
}

// reissueCertificate replaces a certificate and its key, with the same names, and returns it.
func reissueCertificate(t *testing.T, ca *pki.Authority, dir, name string) *x509.Certificate {
	t.Helper()
	old, err := certs.ReadCertificate(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	hosts := slices.Clone(old.DNSNames)
	for _, ip := range old.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	aside := filepath.Join(dir, "next")
	pair, err := ca.IssueIn(aside, name, pki.Subject{Name: old.Subject.CommonName, Groups: old.Subject.Organization, Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{pair.Key: name + ".key", pair.Cert: name + ".crt"} {
		if err := os.Rename(from, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	fresh, err := certs.ReadCertificate(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	return fresh
}

// awaitServedCertificate waits until a listener serves a certificate. It reads the certificate by a handshake that trusts no CA.
func (r *testCluster) awaitServedCertificate(t *testing.T, address string, want *x509.Certificate) {
	t.Helper()
	r.eventually(t, address+" shows its new certificate", waitTimeout, func(ctx context.Context) string {
		dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: "any"}}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return "a handshake that trusts nobody has succeeded: " + errorText(conn.(io.Closer).Close())
		}
		var seen *tls.CertificateVerificationError
		if !errors.As(err, &seen) {
			return err.Error()
		}
		if shown := seen.UnverifiedCertificates[0]; !shown.Equal(want) {
			return "it shows that of " + shown.NotBefore.String()
		}
		return ""
	})
}
