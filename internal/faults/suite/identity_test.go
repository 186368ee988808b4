package suite_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/faults"
)

// shortLife is that of keys while they rotate: each is renewed after some 16 s.
const shortLife = 24 * time.Second

// TestIdentitiesRotateUnderLoad: while objects change, keys of gateways are renewed again and again, all certificates of the hub and of
// the cloudcores are replaced under them, cloudcores die, and a gateway is revoked and joins anew. No link is made anew for any of it
// but the revoked one's, and no promise is broken. It takes a minute and a half.
func TestIdentitiesRotateUnderLoad(t *testing.T) {
	const thief = "edge-2"
	stay := []string{"edge-1", "edge-3"}
	shared.settle(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(setting(t, "SEED", 1), 1<<34)}
	var load errgroup.Group
	load.Go(func() error { return w.run(ctx) })
	t.Cleanup(func() { shared.lives(t, 0) })
	shared.lives(t, shortLife)
	for _, node := range nodes {
		shared.nearItsEnd(t, node)
	}
	for _, node := range nodes {
		shared.renewed(t, node, 1)
	}
	links := map[string]float64{}
	for _, node := range stay {
		links[node] = shared.metric(t, node, "frond_link_reconnects_total")
	}

	var revoking errgroup.Group
	began := time.Now()
	revoking.Go(func() error { return shared.command(ctx, "node", "revoke", thief, "--yes", "--timeout=90s") })
	shared.linked(t, thief, false)
	t.Logf("the link of %s is down %.1fs after its revocation was begun", thief, time.Since(began).Seconds())
	shared.replaceCertificates(t)
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		shared.must(t, func(c *devcluster.Cluster) error { return errors.Join(c.Kill(t.Context(), part), c.Start(t.Context(), part)) })
	}
	for _, node := range stay {
		shared.renewed(t, node, 3)
		if again := shared.metric(t, node, "frond_link_reconnects_total") - links[node]; again != 0 {
			t.Errorf("%s has made its link anew %v times", node, again)
		}
	}
	if err := revoking.Wait(); err != nil {
		t.Error(err)
	}
	if up := shared.metric(t, thief, "frond_link_up"); up != 0 {
		t.Error("the revoked gateway is linked")
	}
	shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), thief) })
	if err := shared.wipe(t.Context(), thief); err != nil { // what frond reset does; its token names it
		t.Fatal(err)
	}
	shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), thief) })
	shared.linked(t, thief, true)

	shared.lives(t, 0)
	for _, node := range nodes {
		shared.eventually(t, "the key of "+node+" lives long again", patience, func(context.Context) string {
			if ends, err := shared.reads(t.Context(), node, "frond_identity_expires_timestamp_seconds"); err != nil || ends < float64(time.Now().Add(time.Hour).Unix()) {
				return fmt.Sprintf("until %v, %v", ends, err)
			}
			return ""
		})
	}
	cancel()
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.settle(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// lives has cloudcores give keys so much time, 0 what they do by themselves; one cloudcore dies after the other for it.
func (r *rig) lives(t *testing.T, life time.Duration) {
	t.Helper()
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		file := filepath.Join(r.cluster.Dir(), part, "cloudcore.yaml")
		cfg := map[string]any{}
		data, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(data, &cfg)
		}
		if err != nil {
			t.Fatal(err)
		}
		identity := cfg["identity"].(map[string]any)
		before, _ := identity["keyLifetime"].(string)
		after := ""
		if delete(identity, "keyLifetime"); life > 0 {
			after = life.String()
			identity["keyLifetime"] = after
		}
		if before == after {
			continue
		}
		if data, err = yaml.Marshal(cfg); err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.WithoutCancel(t.Context()) // also when the test has failed
		if err := r.do(func(c *devcluster.Cluster) error { return errors.Join(c.Kill(ctx, part), c.Start(ctx, part)) }); err != nil {
			t.Fatal(err)
		}
	}
}

// nearItsEnd restarts a gateway whose key has lived two thirds of a short life.
func (r *rig) nearItsEnd(t *testing.T, node string) {
	t.Helper()
	r.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
	file := filepath.Join(r.cluster.Dir(), node, "data", "identity", "enrolment.json")
	record := map[string]any{}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	record["issued"], record["expires"] = now.Add(-shortLife), now.Add(shortLife/10)
	if data, err = json.Marshal(record); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
}

// reads reads a metric of a part.
func (r *rig) reads(ctx context.Context, part, name string, labels ...string) (value float64, err error) {
	err = r.do(func(c *devcluster.Cluster) error {
		value, err = c.Metric(ctx, part, name, labels...)
		return err
	})
	return value, err
}

// metric reads a metric of a part that answers, sooner or later.
func (r *rig) metric(t *testing.T, part, name string, labels ...string) (value float64) {
	t.Helper()
	r.eventually(t, name+" of "+part, patience, func(ctx context.Context) string {
		var err error
		value, err = r.reads(ctx, part, name, labels...)
		return said(err)
	})
	return value
}

// renewed waits until a gateway has renewed its key so often since it began.
func (r *rig) renewed(t *testing.T, node string, times float64) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("%s renews its key %v times", node, times), patience, func(ctx context.Context) string {
		if n, err := r.reads(ctx, node, "frond_identity_renewals_total", "result=renewed"); err != nil || n < times {
			return fmt.Sprint(n, " times, ", err)
		}
		return ""
	})
}

// linked waits until a gateway has a link, or none.
func (r *rig) linked(t *testing.T, node string, up bool) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("%s is linked: %v", node, up), patience, func(ctx context.Context) string {
		if is, err := r.reads(ctx, node, "frond_link_up"); err != nil || (is == 1) != up {
			return fmt.Sprint(is, err)
		}
		return ""
	})
}

// command runs the command for people.
func (r *rig) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.cluster.Dir(), "bin", "frond"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("frond %v: %w: %s", args, err, out)
	}
	return nil
}

// replaceCertificates makes anew what the hub and the cloudcores show, and waits until they show it.
func (r *rig) replaceCertificates(t *testing.T) {
	t.Helper()
	in := func(elem ...string) string { return filepath.Join(append([]string{r.cluster.Dir()}, elem...)...) }
	for _, hub := range []string{"hub-1", "hub-2", "hub-3"} {
		fresh := reissue(t, in("nats"), "ca", in("nats"), hub)
		chain, err := os.ReadFile(in("nats", hub+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(in("nats", "ca.crt"))
		if err == nil {
			err = os.WriteFile(in("nats", hub+".chain.crt"), slices.Concat(chain, ca), 0o600)
		}
		if err == nil {
			err = syscall.Kill(r.cluster.PID(hub), syscall.SIGHUP)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.shows(t, listener(t, in(hub, "nats-server.conf")), fresh)
	}
	reissue(t, in("nats"), "ca", in("nats"), "cloudcore") // as a client: shown at the next connection
	fresh := reissue(t, in("pki"), "egress-ca", in("pki"), "gateway")
	url, _, err := r.cluster.Egress()
	if err != nil {
		t.Fatal(err)
	}
	r.shows(t, strings.TrimPrefix(url, "https://"), fresh)
	for i, url := range strings.Split(r.cluster.Cloudcores(), ",") {
		fresh := reissue(t, in("pki"), "ca", in(fmt.Sprint("cloudcore-", i+1)), "serving")
		r.shows(t, strings.TrimPrefix(url, "https://"), fresh)
	}
}

// listener is the leaf listener in a hub's configuration.
func listener(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, leafs, _ := strings.Cut(string(data), "leafnodes {")
	_, address, found := strings.Cut(leafs, `listen: "`)
	if address, _, _ = strings.Cut(address, `"`); !found {
		t.Fatalf("no leaf listener in %s", file)
	}
	return address
}

// reissue makes a certificate and its key anew, with the same names, and returns it.
func reissue(t *testing.T, authorities, authority, dir, name string) *x509.Certificate {
	t.Helper()
	ca, err := pki.NewAuthority(authorities, authority)
	if err != nil {
		t.Fatal(err)
	}
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
