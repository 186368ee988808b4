package entry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/rulecall"
	"github.com/frond-edge/frond/cloud/rules/entry"
	"github.com/frond-edge/frond/controllers/rules/resolve"
	"github.com/frond-edge/frond/edged/servicebus"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// reviewer knows the user of the token "good", who may invoke the rules echo and closed, and nothing else.
type reviewer struct{}

var (
	errUnknown   = errors.New("who are you")
	errForbidden = errors.New("forbidden")
)

func (reviewer) IdentifyUser(_ context.Context, r *http.Request) (authenticationv1.UserInfo, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token == "" {
		return authenticationv1.UserInfo{}, errUnknown
	}
	return authenticationv1.UserInfo{Username: token}, nil
}

func (reviewer) AuthorizeUser(_ context.Context, user authenticationv1.UserInfo, on authorizationv1.ResourceAttributes) error {
	known := on.Name == "echo" || on.Name == "closed" || on.Name == ""
	if user.Username == "good" && on.Verb == "invoke" && on.Group == "rules.kubeedge.io" && on.Resource == "rules" && on.Namespace == "line3" && known {
		return nil
	}
	return errForbidden
}

func (reviewer) StatusCode(err error) int {
	if errors.Is(err, errUnknown) {
		return http.StatusUnauthorized
	}
	return http.StatusForbidden
}

// system is an entry with a gateway gw-1, joined by a real hub.
type system struct {
	testing.TB
	url   string
	calls atomic.Int64 // of the service
}

// serve is the service on the gateway.
func (s *system) serve(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Errorf("service: %v", err)
	}
	if r.Header.Get("Authorization") != "" || r.Header.Get(rulecall.HeaderPort) != "" {
		s.Errorf("the service gets %v", r.Header)
	}
	w.Header().Set("X-Own", r.Header.Get("X-Own"))
	w.Header().Set(rulecall.HeaderNotSent, "a lie")
	switch {
	case strings.HasSuffix(r.URL.Path, "/404"):
		w.WriteHeader(http.StatusNotFound)
	case strings.HasSuffix(r.URL.Path, "/500"):
		w.WriteHeader(http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/201"):
		w.WriteHeader(http.StatusCreated)
	case strings.HasSuffix(r.URL.Path, "/break"):
		panic(http.ErrAbortHandler)
	}
	_, _ = fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.RequestURI(), len(body))
}

func portOf(t testing.TB, s *httptest.Server) uint16 {
	t.Helper()
	address, ok := s.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("the service has no port")
	}
	return uint16(address.Port)
}

// start starts all of it. access is the entry's, nil for an insecure one.
func start(t *testing.T, access entry.Access) *system {
	t.Helper()
	s := &system{TB: t}
	service := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(service.Close)
	closed := httptest.NewServer(http.NotFoundHandler()) // its port is not among those of the gateway
	t.Cleanup(closed.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	hub := streamstest.Hub(t)
	log := zaptest.NewLogger(t)
	tunnels, err := tunnel.NewServer("gw-1", streamstest.Node(t, hub, "gw-1"), tunnel.Config{}, tunnel.NewMetrics(nil), log)
	kit.Must(t, err)
	listener, err := tunnels.Listen(config.EdgeServicePort)
	kit.Must(t, err)
	gateway := servicebus.New([]uint16{portOf(t, service), portOf(t, gone)}, log)
	streamstest.StartPart(t, tunnels.Start)
	streamstest.StartPart(t, func(ctx context.Context) error { return gateway.Serve(ctx, listener) })
	kit.Receive(t, "the gateway takes tunnels", tunnels.Ready())
	dialer, err := tunnel.NewDialer(streamstest.Connect(t, hub), tunnel.Config{}, tunnel.NewMetrics(nil), log)
	kit.Must(t, err)
	streamstest.StartPart(t, dialer.Start)
	kit.Receive(t, "cloudcore opens tunnels", dialer.Ready())
	dial := func(ctx context.Context, node, user string) (net.Conn, error) {
		conn, err := dialer.Dial(tunnel.WithLabel(ctx, user), node, config.EdgeServicePort)
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
	routes := func(namespace string) ([]resolve.Route, bool) {
		if namespace != "line3" {
			return nil, namespace != "unread"
		}
		return []resolve.Route{
			{Rule: "echo", Call: resolve.Call{Source: "echo", Port: portOf(t, service), Path: "/in/a b"}},
			{Rule: "foreign", Call: resolve.Call{Source: "foreign", Port: portOf(t, service), Path: "/"}},
			{Rule: "closed", Call: resolve.Call{Source: "closed", Port: portOf(t, closed), Path: "/"}},
			{Rule: "closed", Call: resolve.Call{Source: "gone", Port: portOf(t, gone), Path: "/"}},
		}, true
	}
	handler, err := entry.New(access, routes, dial, prometheus.NewRegistry(), log)
	kit.Must(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// call returns the status, the headers and the body of an answer. token "" sends none.
func (s *system) call(method, path, token string, body io.Reader) (code int, header http.Header, text string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), method, s.url+path, body)
	kit.Must(s, err)
	request.Header.Set("X-Own", "kept")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	kit.Must(s, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	kit.Must(s, err)
	return answer.StatusCode, answer.Header, string(raw)
}

// Any answer of the service comes through, after one call: method, path, query, headers and body are the caller's.
func TestEntry_PassesThrough(t *testing.T) {
	s := start(t, reviewer{})
	for _, tt := range []struct {
		method, path, body, want string
		code                     int
	}{
		{http.MethodGet, "/gw-1/line3/echo", "", "GET /in/a%20b 0", 200},
		{http.MethodPost, "/gw-1/line3/echo/201?x=1;y=:2", "hello", "POST /in/a%20b/201?x=1;y=:2 5", 201},
		{http.MethodPut, "/gw-1/line3/echo/404", "hello", "PUT /in/a%20b/404 5", 404},
		{http.MethodDelete, "/gw-1/line3/echo/%C3%A9:/500", "", "DELETE /in/a%20b/%C3%A9:/500 0", 500},
	} {
		before := s.calls.Load()
		code, header, text := s.call(tt.method, tt.path, "good", strings.NewReader(tt.body))
		if code != tt.code || text != tt.want || header.Get("X-Own") != "kept" || header.Get(rulecall.HeaderNotSent) != "" {
			t.Errorf("%s %s: %d %q %v", tt.method, tt.path, code, text, header)
		}
		if n := s.calls.Load() - before; n != 1 {
			t.Errorf("%s %s: %d calls", tt.method, tt.path, n)
		}
	}
	large := bytes.Repeat([]byte("x"), 1<<20)
	if code, _, text := s.call(http.MethodPost, "/gw-1/line3/echo", "good", bytes.NewReader(large)); code != 200 || !strings.HasSuffix(text, fmt.Sprint(len(large))) {
		t.Errorf("a megabyte: %d %q", code, text)
	}
}

// What fails says whether the service can have got the call, and is not tried twice.
func TestEntry_Failures(t *testing.T) {
	s := start(t, reviewer{})
	for name, tt := range map[string]struct {
		path  string
		code  int
		retry bool
		text  string
		calls int64
	}{
		"offline":                  {"/gw-2/line3/echo", 503, true, "not sent", 0},
		"port that is not allowed": {"/gw-1/line3/closed", 503, true, "serviceBus.ports", 0},
		"nothing listens":          {"/gw-1/line3/gone", 503, true, "not reached", 0},
		"breaks":                   {"/gw-1/line3/echo/break", 502, false, "no answer", 1},
		"no rule":                  {"/gw-1/line3/other", 404, false, "no rule", 0},
		"path too short":           {"/gw-1/line3", 400, false, "", 0},
		"dots":                     {"/gw-1/line3/echo/%2e%2e/x", 400, false, "", 0},
		"no node":                  {"/*/line3/echo", 400, false, "name of a Node", 0},
	} {
		before := s.calls.Load()
		code, header, text := s.call(http.MethodPost, tt.path, "good", strings.NewReader("x"))
		if code != tt.code || (header.Get("Retry-After") != "") != tt.retry || !strings.Contains(text, tt.text) || s.calls.Load()-before != tt.calls {
			t.Errorf("%s: %d %q %v, %d calls", name, code, text, header, s.calls.Load()-before)
		}
	}
	before := s.calls.Load()
	// A client that waits for the entry's word before it sends the body gets the answer in any case.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/gw-1/line3/echo", bytes.NewReader(make([]byte, rulecall.MaxBody+1)))
	kit.Must(t, err)
	request.Header = http.Header{"Authorization": {"Bearer good"}, "Expect": {"100-continue"}}
	answer, err := (&http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}).RoundTrip(request)
	kit.Must(t, err)
	kit.Must(t, answer.Body.Close())
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large: %s", answer.Status)
	}
	if n := s.calls.Load() - before; n != 0 {
		t.Errorf("a body that is too large: %d calls", n)
	}
}

// Without the right on the very rule nothing is called, and nobody is told which rules there are.
func TestEntry_Access(t *testing.T) {
	s := start(t, reviewer{})
	for path, codes := range map[string][3]int{ // without a token, with a foreign one, with the good one
		"/gw-1/line3/echo":    {401, 403, 200},
		"/gw-1/line3/foreign": {401, 403, 403},
		"/gw-1/line3/other":   {401, 403, 404},
		"/gw-1/line4/echo":    {401, 403, 403},
		"/gw-1/unread/echo":   {401, 503, 503},
		"/":                   {401, 400, 400},
	} {
		for i, token := range []string{"", "foreign", "good"} {
			before := s.calls.Load()
			if code, _, text := s.call(http.MethodPost, path, token, nil); code != codes[i] {
				t.Errorf("%s with %q: %d %q, want %d", path, token, code, text, codes[i])
			} else if code != 200 && s.calls.Load() != before {
				t.Errorf("%s with %q: the service was called", path, token)
			}
		}
	}
}

// An insecure entry serves everybody.
func TestEntry_Insecure(t *testing.T) {
	s := start(t, nil)
	if code, _, text := s.call(http.MethodPost, "/gw-1/line3/foreign/x", "", strings.NewReader("x")); code != 200 || text != "POST /x 1" {
		t.Errorf("%d %q", code, text)
	}
}
