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
	"github.com/frond-edge/frond/internal/install"
)

// believed are the hashes of the authorities in a bundle.
func believed(t *testing.T, bundle []byte) []string {
	t.Helper()
	var all []string
	for len(bundle) > 0 {
		hash, err := install.CAHash(bundle)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, hash)
		_, bundle = pem.Decode(bundle)
	}
	return all
}

// signs says whether an authority, the last certificate of a chain, has signed the first one.
func signs(t *testing.T, chain []byte, hash string) bool {
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
	return slices.Equal(slices.Compact(believed(t, rest)), []string{hash})
}

// bridges says whether who believes but these authorities believes the first certificate of a chain, shown with the others.
func bridges(t *testing.T, chain, believed []byte) bool {
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

// Who has only ever heard of the first authority believes the hub after all changes of it, and who believes the last one does not
// believe what the first one signs now.
func TestAnAuthorityVouchesForTheNext(t *testing.T) {
	i := newInstallation(t)
	i.must("init", "--hub-servers", "1")
	const shown = "frond-hub-0/tls.crt"
	first := i.files()
	for range 2 {
		for _, step := range []string{"add", "switch", "drop"} {
			i.must("ca", "rotate", step)
			if !bridges(t, i.files()[shown], first["frond-ca/ca.crt"]) {
				t.Errorf("after %s the first authority does not lead to the hub", step)
			}
		}
	}
	if bridges(t, first[shown], i.files()["frond-hub-0/ca.crt"]) {
		t.Error("the first authority is believed")
	}
	if out := i.must("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("init then prints %s", out)
	}
}

func TestTheAuthorityIsReplaced(t *testing.T) {
	i := newInstallation(t)
	if code, _, errs := i.run("ca", "rotate", "add"); code != 1 || !strings.Contains(errs, "run frond init") {
		t.Errorf("before the installation: code %d, %s", code, errs)
	}
	first := report(t, i.must("init", "--hub-servers", "1", "--hub-url", "tls://hub.example.com:7422", "-o", "json")).CAHash
	keys := i.files()
	if code, _, errs := i.run("ca", "rotate", "switch"); code != 1 || !strings.Contains(errs, "frond ca rotate add first") {
		t.Errorf("switch at first: code %d, %s", code, errs)
	}
	i.join("late", identity.NodeIdentitySpec{
		Key: key("J"), Issued: metav1.Time{Time: time.Now().Add(-time.Hour)}, Expires: metav1.Time{Time: time.Now().Add(time.Hour)},
	})
	for name, after := range map[string]time.Duration{"early": 10 * time.Minute, "knows": 20 * time.Minute} {
		i.join(name, identity.NodeIdentitySpec{
			Key: key(strings.ToUpper(name[:1])), Issued: metav1.Time{Time: time.Now().Add(after)}, Expires: metav1.Time{Time: time.Now().Add(time.Hour)},
		})
	}
	added := report(t, i.must("ca", "rotate", "add", "-o", "json"))
	second := added.Rollover.Next
	if added.CAHash != first || second == "" || second == first {
		t.Fatalf("after add: %+v", added)
	}
	both := []string{"frond-hub-0/ca.crt", "frond-cloudcore/ca.crt", "frond-admin/ca.crt"}
	for _, file := range both {
		if got := believed(t, i.files()[file]); !slices.Equal(got, []string{first, second}) {
			t.Errorf("%s believes %v after add", file, got)
		}
	}
	for _, again := range [][]string{{"ca", "rotate", "add"}, {"init"}} {
		if out := i.must(again...); !strings.Contains(out, "nothing to change") {
			t.Errorf("%v then prints %s", again, out)
		}
	}
	if code, _, errs := i.run("ca", "rotate", "switch"); code != 1 || !strings.Contains(errs, "2 gateways have not renewed") ||
		!strings.Contains(errs, "early, late") {
		t.Errorf("switch too early: code %d, %s", code, errs)
	}
	i.must("ca", "rotate", "switch", "--force")
	files := i.files()
	for _, folder := range []string{"frond-hub-0", "frond-cloudcore", "frond-admin"} {
		if !signs(t, files[folder+"/tls.crt"], second) || string(files[folder+"/tls.key"]) != string(keys[folder+"/tls.key"]) {
			t.Errorf("the certificate of %s is not that of the next authority, or its key is another one", folder)
		}
	}
	for _, file := range both {
		if got := believed(t, files[file]); !slices.Equal(got, []string{second, first}) {
			t.Errorf("%s believes %v after switch", file, got)
		}
	}
	if out := i.must("token", "create", "--print-join-command"); !strings.Contains(out, second) {
		t.Errorf("join command %s", out)
	}
	if out := i.must("ca", "rotate", "switch"); !strings.Contains(out, "nothing to change") {
		t.Errorf("switch again prints %s", out)
	}
	if code, _, errs := i.run("ca", "rotate", "add"); code != 1 || !strings.Contains(errs, "frond ca rotate drop first") {
		t.Errorf("add before drop: code %d, %s", code, errs)
	}
	i.must("ca", "rotate", "drop")
	for _, file := range both {
		if got := believed(t, i.files()[file]); !slices.Equal(got, []string{second}) {
			t.Errorf("%s believes %v after drop", file, got)
		}
	}
	if out := i.must("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("init then prints %s", out)
	}
	for file, data := range i.files() {
		if strings.HasSuffix(file, ".nk") && string(data) != string(keys[file]) {
			t.Errorf("%s changed", file)
		}
	}
}

func TestAChangeOfTheAuthorityIsGivenUp(t *testing.T) {
	i := newInstallation(t)
	i.must("init", "--hub-servers", "1")
	before := i.files()
	i.must("ca", "rotate", "add")
	i.must("ca", "rotate", "drop")
	if got := changed(before, i.files()); len(got) > 0 || len(i.files()) != len(before) {
		t.Errorf("left behind: %v", got)
	}
}

// TestASwitchThatWasInterruptedIsCompleted leaves the authority switched and all certificates as they were.
func TestASwitchThatWasInterruptedIsCompleted(t *testing.T) {
	i := newInstallation(t)
	i.must("init", "--hub-servers", "1")
	i.must("ca", "rotate", "add")
	old := i.files()
	i.must("ca", "rotate", "switch")
	secrets := i.client.CoreV1().Secrets(identity.Namespace)
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
	hash := report(t, i.must("init", "-o", "json")).CAHash
	if !signs(t, i.files()["frond-hub-0/tls.crt"], hash) {
		t.Error("the hub shows a certificate of the authority before")
	}
}
