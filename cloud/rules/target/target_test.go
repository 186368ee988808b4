package target_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/cloud/rules/target"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

func newClient(t *testing.T, allowed []netip.Prefix) *target.Client {
	t.Helper()
	c := target.New(allowed)
	t.Cleanup(c.Close)
	return c
}

func TestCheck(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "10.0.0.1", "172.16.0.1", "192.168.1.1", "[::ffff:10.0.0.1]", "[fd00::1]",
		"169.254.169.254", "[fe80::1]", "[fe80::1%eth0]", "[fd00:ec2::254]", "100.100.100.200", "192.0.0.192", "168.63.129.16", "224.0.0.1", "[ff02::1]",
		"255.255.255.255", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[2001:0:7f00:1::1]", "[::10.0.0.1]", "[::a9fe:a9fe]", "no address",
	} {
		if err := target.Check(address+":80", nil); !errors.Is(err, target.ErrDenied) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"1.1.1.1", "[2606:4700::1111]", "[2001:4860:4860::8888]", "172.32.0.1", "100.128.0.1"} {
		if err := target.Check(address+":443", nil); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := target.Check("[::ffff:127.0.0.1]:80", loopback()); err != nil {
		t.Errorf("an allowed address in the form of IPv6: %v", err)
	}
	if err := target.Check("10.0.0.1:80", loopback()); !errors.Is(err, target.ErrDenied) {
		t.Errorf("an address beside the allowed networks: %v", err)
	}
}

// A target gets the body and the headers as they are; the status and the beginning of the answer come back.
func TestClient_Posts(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.RequestURI() != "/alarms?x=1" || string(body) != "x\x00y" || r.Header.Get("NodeName") != "gw-1" || len(r.Header["Content-Type"]) != 0 {
			t.Errorf("%s %s %q %v", r.Method, r.URL, body, r.Header)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short\nand\x01stout"+strings.Repeat("é", 10_000))
	}))
	t.Cleanup(server.Close)
	answer, err := newClient(t, loopback()).Post(t.Context(), target.Request{
		URL: server.URL + "/alarms?x=1", Header: map[string]string{"NodeName": "gw-1"}, Body: []byte("x\x00y"),
	})
	if err != nil || answer.Code != http.StatusTeapot || !strings.HasPrefix(answer.Text, "short and stouté") || len(answer.Text) > 200 {
		t.Errorf("%+v, %v", answer, err)
	}
}

// What only cloudcore can reach is not dialled: by its address, by a name that leads there, or by a redirection.
func TestClient_RefusesInternalAddresses(t *testing.T) {
	called := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	t.Cleanup(server.Close)
	client := newClient(t, nil)
	for _, url := range []string{server.URL, strings.Replace(server.URL, "127.0.0.1", "localhost", 1), strings.Replace(server.URL, "127.0.0.1", "[::ffff:127.0.0.1]", 1)} {
		if _, err := client.Post(t.Context(), target.Request{URL: url}); !errors.Is(err, target.ErrDenied) {
			t.Errorf("%s: %v", url, err)
		}
	}
	// The first server is allowed, the address that it names is not.
	redirecting := httptest.NewServer(http.RedirectHandler("http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	answer, err := newClient(t, loopback()).Post(t.Context(), target.Request{URL: redirecting.URL})
	if err != nil || answer.Code != http.StatusTemporaryRedirect {
		t.Errorf("redirection: %+v, %v", answer, err)
	}
	if called {
		t.Error("the target was called")
	}
}

// Variables of the environment name no proxy: it would reach what the check refuses.
func TestClient_UsesNoProxy(t *testing.T) {
	called := false
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	t.Cleanup(proxy.Close)
	t.Setenv("HTTP_PROXY", proxy.URL)
	if _, err := newClient(t, loopback()).Post(t.Context(), target.Request{URL: "http://10.1.2.3/"}); !errors.Is(err, target.ErrDenied) || called {
		t.Errorf("%v, proxy called: %t", err, called)
	}
}

func TestClient_VerifiesCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	_, err := newClient(t, loopback()).Post(t.Context(), target.Request{URL: server.URL})
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Errorf("certificate of an unknown authority: %v", err)
	}
}

// A request ends with its context, and no error shows a password of the URL.
func TestClient_Errors(t *testing.T) {
	begun := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	_, err := newClient(t, loopback()).Post(ctx, target.Request{URL: strings.Replace(server.URL, "http://", "http://user:secret@", 1)})
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "secret") {
		t.Errorf("canceled: %v", err)
	}
	for _, r := range []target.Request{{URL: "http://[::1"}, {URL: server.URL, Header: map[string]string{"Frond-Message-Id": "gw-1/\x01/1"}}} {
		if _, err := newClient(t, loopback()).Post(t.Context(), r); !errors.Is(err, target.ErrUnusable) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, url := range []string{"http://user:secret@127.0.0.1:1/", "http://user:secret@[::1", "http://user:secret@127.0.0.1:http/"} {
		if _, err := newClient(t, loopback()).Post(t.Context(), target.Request{URL: url}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
