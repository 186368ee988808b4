package suite_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/renameio/v2"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// in is a file of the cluster.
func (r *rig) in(elem ...string) string {
	return filepath.Join(append([]string{r.cluster.Dir()}, elem...)...)
}

// replaceCertificates makes anew what the hub and the cloudcores show, and waits until they show it.
func (r *rig) replaceCertificates(t *testing.T) {
	t.Helper()
	authority := r.authority(t, r.in("nats"), "ca")
	r.replaceHubs(t, authority, nil)
	reissue(t, authority, r.in("nats"), "cloudcore") // as a client: shown at the next connection
	fresh := reissue(t, r.authority(t, r.in("pki"), "egress-ca"), r.in("pki"), "gateway")
	url, _, err := r.cluster.Egress()
	if err != nil {
		t.Fatal(err)
	}
	r.shows(t, strings.TrimPrefix(url, "https://"), fresh)
	for i, url := range strings.Split(r.cluster.Cloudcores(), ",") {
		fresh := reissue(t, r.authority(t, r.in("pki"), "ca"), r.in(fmt.Sprint("cloudcore-", i+1)), "serving")
		r.shows(t, strings.TrimPrefix(url, "https://"), fresh)
	}
}

func (*rig) authority(t *testing.T, dir, name string) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// replaceHubs makes anew what the servers of the hub show, with something between it and the authority, and waits until they do.
func (r *rig) replaceHubs(t *testing.T, authority *pki.Authority, between []byte) {
	t.Helper()
	ca := read(t, authority.Cert)
	for _, hub := range []string{"hub-1", "hub-2", "hub-3"} {
		fresh := reissue(t, authority, r.in("nats"), hub)
		write(t, r.in("nats", hub+".chain.crt"), slices.Concat(read(t, r.in("nats", hub+".crt")), between, ca))
		r.reload(t, hub)
		r.shows(t, listener(t, r.in(hub, "nats-server.conf")), fresh)
	}
}

// reload has servers of the hub read their files again.
func (r *rig) reload(t *testing.T, hubs ...string) {
	t.Helper()
	for _, hub := range hubs {
		if err := syscall.Kill(r.cluster.PID(hub), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// write replaces a file whole.
func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := renameio.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// listener is the leaf listener in a hub's configuration.
func listener(t *testing.T, file string) string {
	t.Helper()
	_, leafs, _ := strings.Cut(string(read(t, file)), "leafnodes {")
	_, address, found := strings.Cut(leafs, `listen: "`)
	if address, _, _ = strings.Cut(address, `"`); !found {
		t.Fatalf("no leaf listener in %s", file)
	}
	return address
}

// reissue makes a certificate and its key anew, with the same names, and returns it.
func reissue(t *testing.T, ca *pki.Authority, dir, name string) *x509.Certificate {
	t.Helper()
	old, err := certs.Read(filepath.Join(dir, name+".crt"))
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
	fresh, err := certs.Read(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	return fresh
}

// shows waits until a listener shows a certificate. It is looked at by a handshake that trusts nobody.
func (r *rig) shows(t *testing.T, address string, want *x509.Certificate) {
	t.Helper()
	r.eventually(t, address+" shows its new certificate", patience, func(ctx context.Context) string {
		dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: "any"}}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return "a handshake that trusts nobody has succeeded: " + said(conn.(io.Closer).Close())
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
