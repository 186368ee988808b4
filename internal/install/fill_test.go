package install_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/pki"
)

const (
	year    = 365 * 24 * time.Hour
	hubHost = "hub.example.com"
)

func hubSpec(hosts ...string) install.Spec {
	return install.Spec{Servers: []install.Server{{Name: "hub-0", Hosts: append([]string{"127.0.0.1"}, hosts...)}}}
}

// mustFill is Fill that must succeed. It returns the names of the files that were made.
func mustFill(t *testing.T, have install.Files, s install.Spec, now time.Time) (install.Files, []string) {
	t.Helper()
	before := maps.Clone(have)
	files, changes, err := install.Fill(have, s, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, have); diff != "" {
		t.Errorf("it changed its argument:\n%s", diff)
	}
	var made []string
	for _, c := range changes {
		made = append(made, c.File)
		if c.Reason == "" || string(files[c.File]) == string(have[c.File]) {
			t.Errorf("%s: changed %t for the reason %q", c.File, string(files[c.File]) != string(have[c.File]), c.Reason)
		}
	}
	for name := range files {
		if string(files[name]) != string(have[name]) && !slices.Contains(made, name) {
			t.Errorf("%s changed, and nobody says so", name)
		}
	}
	return files, made
}

func TestFill_MakesMissingFiles(t *testing.T) {
	now := time.Now()
	whole, made := mustFill(t, nil, hubSpec(hubHost), now)
	want := []string{
		"frond-admin/admin.nk", "frond-admin/ca.crt", "frond-admin/sys.nk", "frond-admin/tls.crt", "frond-admin/tls.key",
		"frond-ca/ca.crt", "frond-ca/ca.key",
		"frond-cloudcore/auth.nk", "frond-cloudcore/ca.crt", "frond-cloudcore/hub.nk", "frond-cloudcore/issuer.nk", "frond-cloudcore/sys.nk",
		"frond-cloudcore/tls.crt", "frond-cloudcore/tls.key",
		"frond-hub-0/ca.crt", "frond-hub-0/tls.crt", "frond-hub-0/tls.key",
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Fatalf("made (-want +got):\n%s", diff)
	}
	if _, made := mustFill(t, whole, hubSpec(hubHost), now.Add(time.Hour)); len(made) > 0 {
		t.Errorf("a second time it makes %v", made)
	}
	without := func(names ...string) install.Files {
		files := maps.Clone(whole)
		for _, name := range names {
			delete(files, name)
		}
		return files
	}
	for name, tt := range map[string]struct {
		have install.Files
		spec install.Spec
		at   time.Time
		made []string
	}{
		"a seed":            {without("frond-cloudcore/auth.nk"), hubSpec(hubHost), now, []string{"frond-cloudcore/auth.nk"}},
		"a key":             {without("frond-hub-0/tls.key"), hubSpec(hubHost), now, []string{"frond-hub-0/tls.crt", "frond-hub-0/tls.key"}},
		"a certificate":     {without("frond-hub-0/tls.crt"), hubSpec(hubHost), now, []string{"frond-hub-0/tls.crt"}},
		"a bundle":          {without("frond-admin/ca.crt"), hubSpec(hubHost), now, []string{"frond-admin/ca.crt"}},
		"another name":      {whole, hubSpec("other.example.com"), now, []string{"frond-hub-0/tls.crt"}},
		"order of names":    {whole, hubSpec(hubHost, "127.0.0.1"), now, nil},
		"half a life":       {whole, hubSpec(hubHost), now.Add(year / 2), nil},
		"near the end":      {whole, hubSpec(hubHost), now.Add(year * 3 / 4), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
		"after the end":     {whole, hubSpec(hubHost), now.Add(2 * year), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
		"damaged":           {withFile(whole, "frond-hub-0/tls.crt", "x"), hubSpec(hubHost), now, []string{"frond-hub-0/tls.crt"}},
		"another server":    {whole, install.Spec{Servers: append(hubSpec(hubHost).Servers, install.Server{Name: "hub-1", Hosts: []string{hubHost}})}, now, []string{"frond-hub-1/ca.crt", "frond-hub-1/tls.crt", "frond-hub-1/tls.key"}},
		"someone's own":     {withFile(whole, "frond-hub-0/extra", "x"), hubSpec(hubHost), now, nil},
		"other authority":   {withFile(whole, "frond-hub-0/tls.crt", foreignCertificate(t, now)), hubSpec(hubHost), now, []string{"frond-hub-0/tls.crt"}},
		"near the very end": {whole, hubSpec(hubHost), now.Add(9*year + year*9/10), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			files, made := mustFill(t, tt.have, tt.spec, tt.at)
			if diff := cmp.Diff(tt.made, made); diff != "" {
				t.Errorf("made (-want +got):\n%s", diff)
			}
			if _, again := mustFill(t, files, tt.spec, tt.at); len(again) > 0 {
				t.Errorf("a second time it makes %v", again)
			}
		})
	}
	rotated := hubSpec(hubHost)
	rotated.Rotate = true
	if _, made := mustFill(t, whole, rotated, now); len(made) != 6 {
		t.Errorf("rotated %v, want three certificates and keys", made)
	}
}

func withFile(files install.Files, name, data string) install.Files {
	files = maps.Clone(files)
	files[name] = []byte(data)
	return files
}

// foreignCertificate is a certificate for the same names by another CA.
func foreignCertificate(t *testing.T, now time.Time) string {
	t.Helper()
	files, _ := mustFill(t, nil, hubSpec(hubHost), now)
	return string(files["frond-hub-0/tls.crt"])
}

func TestFill_ReplacesNoKey(t *testing.T) {
	whole, _ := mustFill(t, nil, hubSpec(hubHost), time.Now())
	lost := maps.Clone(whole)
	delete(lost, "frond-ca/ca.key")
	other, _ := mustFill(t, nil, hubSpec(hubHost), time.Now())
	for name, tt := range map[string]struct {
		have install.Files
		want string
	}{
		"a seed that is none":        {withFile(whole, "frond-cloudcore/hub.nk", "x"), "frond-cloudcore/hub.nk holds no seed"},
		"a user's for an account's":  {withFile(whole, "frond-cloudcore/issuer.nk", string(whole["frond-admin/admin.nk"])), "frond-cloudcore/issuer.nk holds no seed"},
		"a damaged key":              {withFile(whole, "frond-hub-0/tls.key", "x"), "read frond-hub-0/tls.key"},
		"an authority without a key": {lost, "Put it back from a backup"},
		"another authority's key":    {withFile(whole, "frond-ca/ca.key", string(other["frond-ca/ca.key"])), "do not belong together"},
		"a damaged authority":        {withFile(whole, "frond-ca/ca.crt", "x"), "read frond-ca/ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := install.Fill(tt.have, hubSpec(hubHost), time.Now())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestFill_CertificatesServeTLS connects a client to a server with the files, over TLS 1.3.
func TestFill_CertificatesServeTLS(t *testing.T) {
	files, _ := mustFill(t, nil, hubSpec(hubHost), time.Now())
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(files.Bundle()) {
		t.Fatal("no authority")
	}
	pair := func(folder string) tls.Certificate {
		c, err := tls.X509KeyPair(files[folder+"/tls.crt"], files[folder+"/tls.key"])
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, tt := range map[string]struct {
		server, client, host string
		good                 bool
	}{
		"cloudcore":         {"frond-hub-0", "frond-cloudcore", hubHost, true},
		"by its address":    {"frond-hub-0", "frond-admin", "127.0.0.1", true},
		"hub servers":       {"frond-hub-0", "frond-hub-0", hubHost, true},
		"a client serves":   {"frond-cloudcore", "frond-admin", hubHost, false},
		"by another's name": {"frond-hub-0", "frond-admin", "example.com", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := socketPair(t)
			server := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{pair(tt.server)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13})
			client := tls.Client(b, &tls.Config{Certificates: []tls.Certificate{pair(tt.client)}, RootCAs: pool, ServerName: tt.host, MinVersion: tls.VersionTLS13})
			served := make(chan error, 1)
			go func() { served <- server.HandshakeContext(t.Context()) }()
			err := client.HandshakeContext(t.Context())
			if err != nil {
				_ = b.Close() // the server waits for it
			}
			if fault := <-served; (err == nil && fault == nil) != tt.good {
				t.Errorf("client %v, server %v; want good %t", err, fault, tt.good)
			}
			if !tt.good {
				return
			}
			// A gateway that joins knows only the CA's hash, and compares it with the end of the served chain.
			shown := client.ConnectionState().PeerCertificates
			last := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown[len(shown)-1].Raw})
			got, err := pki.CAHash(last)
			if want, _ := pki.CAHash(files.Bundle()); err != nil || got != want || !strings.HasPrefix(got, "sha256:") {
				t.Errorf("the chain ends with %s, %v; want %s", got, err, want)
			}
		})
	}
}

// socketPair returns the two ends of a connection; with a pipe both sides would wait for each other's alert.
func socketPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	for _, c := range []net.Conn{a, b} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}
