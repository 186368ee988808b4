package leaftest

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// HTTPProxy is an HTTP proxy that supports only CONNECT, for user "me" with password "secret".
type HTTPProxy struct {
	*httptest.Server
	tb testing.TB
	// Tunnels counts the opened tunnels.
	Tunnels atomic.Int64
}

// NewHTTPProxy starts a proxy. It ends with the test.
func NewHTTPProxy(tb testing.TB) *HTTPProxy {
	tb.Helper()
	p := &HTTPProxy{tb: tb}
	p.Server = httptest.NewServer(p)
	tb.Cleanup(p.Close)
	return p
}

// Find returns this proxy for any hub.
func (p *HTTPProxy) Find(*url.URL) (*url.URL, error) {
	u, err := url.Parse(p.URL)
	if err == nil {
		u.User = url.UserPassword("me", "secret")
	}
	return u, err
}

// ServeHTTP opens a tunnel.
func (p *HTTPProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
	user, password, _ := r.BasicAuth()
	if r.Method != http.MethodConnect || user != "me" || password != "secret" {
		http.Error(w, "not for you", http.StatusForbidden)
		return
	}
	far, err := new(net.Dialer).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.tb.Errorf("hijack: %v", err)
		return
	}
	p.Tunnels.Add(1)
	_, _ = io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n") // a dead client is detected by the next read
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
		both.Go(func() {
			_, _ = io.Copy(to, from) // the end of either direction ends both
			_ = to.Close()
		})
	}
	both.Wait()
}
