package main

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install/pki"
)

// bundleHashes returns the hashes of the CAs in a bundle.
func bundleHashes(t *testing.T, bundle []byte) []string {
	t.Helper()
	var all []string
	for len(bundle) > 0 {
		hash, err := pki.CAHash(bundle)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, hash)
		_, bundle = pem.Decode(bundle)
	}
	return all
}

// isSignedBy reports whether a CA, the last certificate of a chain, has signed the first one.
func isSignedBy(t *testing.T, chain []byte, hash string) bool {
	t.Helper()
	leaf, rest := pem.Decode(chain)
	certificate, err := x509.ParseCertificate(leaf.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(rest)
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Errorf("verify: %v", err)
	}
	return slices.Equal(slices.Compact(bundleHashes(t, rest)), []string{hash})
}

// isTrustedThrough reports whether a client that trusts only these CAs accepts the first certificate of a chain, given the others.
func isTrustedThrough(t *testing.T, chain, believed []byte) bool {
	t.Helper()
	leaf, rest := pem.Decode(chain)
	certificate, err := x509.ParseCertificate(leaf.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(believed)
	between.AppendCertsFromPEM(rest)
	_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	return err == nil
}

// A client that trusts only the first CA accepts the hub after all rollovers. A client that trusts only the last CA does not
// accept a certificate that the first one signs now.
func TestCARotate_FormerAuthorityCrossSigns(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-servers", "1")
	const shown = "frond-hub-0/tls.crt"
	first := i.secretFiles()
	for range 2 {
		for _, step := range []string{"add", "switch", "drop"} {
			i.mustRun("ca", "rotate", step)
			if !isTrustedThrough(t, i.secretFiles()[shown], first["frond-ca/ca.crt"]) {
				t.Errorf("after %s the first authority does not lead to the hub", step)
			}
		}
	}
	if isTrustedThrough(t, first[shown], i.secretFiles()["frond-hub-0/ca.crt"]) {
		t.Error("the first authority is believed")
	}
	if out := i.mustRun("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("init then prints %s", out)
	}
}

func TestCARotate_ReplacesAuthority(t *testing.T) {
	i := newInstalledCluster(t)
	if code, _, errs := i.runCommand("ca", "rotate", "add"); code != 1 || !strings.Contains(errs, "run frond init") {
		t.Errorf("before the installation: code %d, %s", code, errs)
	}
	first := parseReport(t, i.mustRun("init", "--hub-servers", "1", "--hub-url", "tls://hub.example.com:7422", "-o", "json")).CAHash
	keys := i.secretFiles()
	if code, _, errs := i.runCommand("ca", "rotate", "switch"); code != 1 || !strings.Contains(errs, "frond ca rotate add first") {
		t.Errorf("switch at first: code %d, %s", code, errs)
	}
	i.joinNode("late", identity.NodeIdentitySpec{
		Key: userKey("J"), Issued: metav1.Time{Time: time.Now().Add(-time.Hour)}, Expires: metav1.Time{Time: time.Now().Add(time.Hour)},
	})
	for name, after := range map[string]time.Duration{"early": 10 * time.Minute, "knows": 20 * time.Minute} {
		i.joinNode(name, identity.NodeIdentitySpec{
			Key: userKey(strings.ToUpper(name[:1])), Issued: metav1.Time{Time: time.Now().Add(after)}, Expires: metav1.Time{Time: time.Now().Add(time.Hour)},
		})
	}
	added := parseReport(t, i.mustRun("ca", "rotate", "add", "-o", "json"))
	second := added.Rollover.Next
	if added.CAHash != first || second == "" || second == first {
		t.Fatalf("after add: %+v", added)
	}
	both := []string{"frond-hub-0/ca.crt", "frond-cloudcore/ca.crt", "frond-admin/ca.crt"}
	for _, file := range both {
		if got := bundleHashes(t, i.secretFiles()[file]); !slices.Equal(got, []string{first, second}) {
			t.Errorf("%s believes %v after add", file, got)
		}
	}
	for _, again := range [][]string{{"ca", "rotate", "add"}, {"init"}} {
		if out := i.mustRun(again...); !strings.Contains(out, "nothing to change") {
			t.Errorf("%v then prints %s", again, out)
		}
	}
	if code, _, errs := i.runCommand("ca", "rotate", "switch"); code != 1 || !strings.Contains(errs, "2 gateways have not renewed") ||
		!strings.Contains(errs, "early, late") {
		t.Errorf("switch too early: code %d, %s", code, errs)
	}
	i.mustRun("ca", "rotate", "switch", "--force")
	files := i.secretFiles()
	for _, folder := range []string{"frond-hub-0", "frond-cloudcore", "frond-admin"} {
		if !isSignedBy(t, files[folder+"/tls.crt"], second) || string(files[folder+"/tls.key"]) != string(keys[folder+"/tls.key"]) {
			t.Errorf("the certificate of %s is not that of the next authority, or its key is another one", folder)
		}
	}
	for _, file := range both {
		if got := bundleHashes(t, files[file]); !slices.Equal(got, []string{second, first}) {
			t.Errorf("%s believes %v after switch", file, got)
		}
	}
	if out := i.mustRun("token", "create", "--print-join-command"); !strings.Contains(out, second) {
		t.Errorf("join command %s", out)
	}
	if out := i.mustRun("ca", "rotate", "switch"); !strings.Contains(out, "nothing to change") {
		t.Errorf("switch again prints %s", out)
	}
	if code, _, errs := i.runCommand("ca", "rotate", "add"); code != 1 || !strings.Contains(errs, "frond ca rotate drop first") {
		t.Errorf("add before drop: code %d, %s", code, errs)
	}
	i.mustRun("ca", "rotate", "drop")
	for _, file := range both {
		if got := bundleHashes(t, i.secretFiles()[file]); !slices.Equal(got, []string{second}) {
			t.Errorf("%s believes %v after drop", file, got)
		}
	}
	if out := i.mustRun("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("init then prints %s", out)
	}
	for file, data := range i.secretFiles() {
		if strings.HasSuffix(file, ".nk") && string(data) != string(keys[file]) {
			t.Errorf("%s changed", file)
		}
	}
}

func TestCARotate_DropBeforeSwitchUndoes(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-servers", "1")
	before := i.secretFiles()
	i.mustRun("ca", "rotate", "add")
	i.mustRun("ca", "rotate", "drop")
	if got := changedFiles(before, i.secretFiles()); len(got) > 0 || len(i.secretFiles()) != len(before) {
		t.Errorf("left behind: %v", got)
	}
}

// TestCARotate_InterruptedSwitchIsCompleted leaves the CA switched and all certificates unchanged.
func TestCARotate_InterruptedSwitchIsCompleted(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-servers", "1")
	i.mustRun("ca", "rotate", "add")
	old := i.secretFiles()
	i.mustRun("ca", "rotate", "switch")
	secrets := i.client.CoreV1().Secrets(names.Namespace)
	o, err := secrets.Get(t.Context(), "frond-hub-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for entry := range o.Data {
		o.Data[entry] = old["frond-hub-0/"+entry]
	}
	if _, err := secrets.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	hash := parseReport(t, i.mustRun("init", "-o", "json")).CAHash
	if !isSignedBy(t, i.secretFiles()["frond-hub-0/tls.crt"], hash) {
		t.Error("the hub shows a certificate of the authority before")
	}
}
