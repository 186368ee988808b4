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
)

const (
	year = 365 * 24 * time.Hour
	hub  = "hub.example.com"
)

func spec(hosts ...string) install.Spec {
	return install.Spec{Servers: []install.Server{{Name: "hub-0", Hosts: append([]string{"127.0.0.1"}, hosts...)}}}
}

// fill is Fill for what must succeed. It returns the names of the files that were made.
func fill(t *testing.T, have install.Files, s install.Spec, now time.Time) (install.Files, []string) {
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

func TestFillMakesWhatIsMissing(t *testing.T) {
	now := time.Now()
	whole, made := fill(t, nil, spec(hub), now)
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
	if _, made := fill(t, whole, spec(hub), now.Add(time.Hour)); len(made) > 0 {
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
		"a seed":            {without("frond-cloudcore/auth.nk"), spec(hub), now, []string{"frond-cloudcore/auth.nk"}},
		"a key":             {without("frond-hub-0/tls.key"), spec(hub), now, []string{"frond-hub-0/tls.crt", "frond-hub-0/tls.key"}},
		"a certificate":     {without("frond-hub-0/tls.crt"), spec(hub), now, []string{"frond-hub-0/tls.crt"}},
		"a bundle":          {without("frond-admin/ca.crt"), spec(hub), now, []string{"frond-admin/ca.crt"}},
		"another name":      {whole, spec("other.example.com"), now, []string{"frond-hub-0/tls.crt"}},
		"order of names":    {whole, spec(hub, "127.0.0.1"), now, nil},
		"half a life":       {whole, spec(hub), now.Add(year / 2), nil},
		"near the end":      {whole, spec(hub), now.Add(year * 3 / 4), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
		"after the end":     {whole, spec(hub), now.Add(2 * year), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
		"damaged":           {set(whole, "frond-hub-0/tls.crt", "x"), spec(hub), now, []string{"frond-hub-0/tls.crt"}},
		"another server":    {whole, install.Spec{Servers: append(spec(hub).Servers, install.Server{Name: "hub-1", Hosts: []string{hub}})}, now, []string{"frond-hub-1/ca.crt", "frond-hub-1/tls.crt", "frond-hub-1/tls.key"}},
		"someone's own":     {set(whole, "frond-hub-0/extra", "x"), spec(hub), now, nil},
		"other authority":   {set(whole, "frond-hub-0/tls.crt", strangers(t, now)), spec(hub), now, []string{"frond-hub-0/tls.crt"}},
		"near the very end": {whole, spec(hub), now.Add(9*year + year*9/10), []string{"frond-admin/tls.crt", "frond-cloudcore/tls.crt", "frond-hub-0/tls.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			files, made := fill(t, tt.have, tt.spec, tt.at)
			if diff := cmp.Diff(tt.made, made); diff != "" {
				t.Errorf("made (-want +got):\n%s", diff)
			}
			if _, again := fill(t, files, tt.spec, tt.at); len(again) > 0 {
				t.Errorf("a second time it makes %v", again)
			}
		})
	}
	rotated := spec(hub)
	rotated.Rotate = true
	if _, made := fill(t, whole, rotated, now); len(made) != 6 {
		t.Errorf("rotated %v, want three certificates and keys", made)
	}
}

func set(files install.Files, name, data string) install.Files {
	files = maps.Clone(files)
	files[name] = []byte(data)
	return files
}

// strangers is a certificate for the same names by another authority.
func strangers(t *testing.T, now time.Time) string {
	t.Helper()
	files, _ := fill(t, nil, spec(hub), now)
	return string(files["frond-hub-0/tls.crt"])
}

func TestFillReplacesNoKey(t *testing.T) {
	whole, _ := fill(t, nil, spec(hub), time.Now())
	lost := maps.Clone(whole)
	delete(lost, "frond-ca/ca.key")
	other, _ := fill(t, nil, spec(hub), time.Now())
	for name, tt := range map[string]struct {
		have install.Files
		want string
	}{
		"a seed that is none":        {set(whole, "frond-cloudcore/hub.nk", "x"), "frond-cloudcore/hub.nk holds no seed"},
		"a user's for an account's":  {set(whole, "frond-cloudcore/issuer.nk", string(whole["frond-admin/admin.nk"])), "frond-cloudcore/issuer.nk holds no seed"},
		"a damaged key":              {set(whole, "frond-hub-0/tls.key", "x"), "read frond-hub-0/tls.key"},
		"an authority without a key": {lost, "Put it back from a backup"},
		"another authority's key":    {set(whole, "frond-ca/ca.key", string(other["frond-ca/ca.key"])), "do not belong together"},
		"a damaged authority":        {set(whole, "frond-ca/ca.crt", "x"), "read frond-ca/ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := install.Fill(tt.have, spec(hub), time.Now())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestCertificatesServe lets a server and a client of the files talk, as TLS 1.3 does it.
func TestCertificatesServe(t *testing.T) {
	files, _ := fill(t, nil, spec(hub), time.Now())
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
		"cloudcore":         {"frond-hub-0", "frond-cloudcore", hub, true},
		"by its address":    {"frond-hub-0", "frond-admin", "127.0.0.1", true},
		"hub servers":       {"frond-hub-0", "frond-hub-0", hub, true},
		"a client serves":   {"frond-cloudcore", "frond-admin", hub, false},
		"by another's name": {"frond-hub-0", "frond-admin", "example.com", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			server := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{pair(tt.server)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13})
			client := tls.Client(b, &tls.Config{Certificates: []tls.Certificate{pair(tt.client)}, RootCAs: pool, ServerName: tt.host, MinVersion: tls.VersionTLS13})
			defer func() { _, _ = a.Close(), b.Close() }()
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
			// Who joins knows the authority's hash only, and compares it with the end of what the server shows.
			shown := client.ConnectionState().PeerCertificates
			last := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown[len(shown)-1].Raw})
			got, err := install.CAHash(last)
			if want, _ := install.CAHash(files.Bundle()); err != nil || got != want || !strings.HasPrefix(got, "sha256:") {
				t.Errorf("the chain ends with %s, %v; want %s", got, err, want)
			}
		})
	}
}
