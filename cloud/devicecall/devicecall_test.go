package devicecall_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/cloud/devicecall"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everybody may call; who may not is the subject of the test of frond device call, with a real apiserver.
type everybody struct{ err error }

func (e everybody) IdentifyUser(context.Context, *http.Request) (authenticationv1.UserInfo, error) {
	return authenticationv1.UserInfo{Username: "ada"}, nil
}

func (e everybody) AuthorizeUser(_ context.Context, _ authenticationv1.UserInfo, on authorizationv1.ResourceAttributes) error {
	if on.Verb != "create" || on.Resource != "devices" || on.Subresource != "call" || on.Namespace != "plant" || on.Name != "boiler" || on.Group != "devices.kubeedge.io" {
		return errors.New("asked for another right")
	}
	return e.err
}

func (everybody) StatusCode(error) int { return http.StatusForbidden }

// TestHandler_StolenGateway: whatever a gateway answers, the outcome is one that is true, small and no more than a call's.
func TestHandler_StolenGateway(t *testing.T) {
	answer := func(code, body string) string { return "HTTP/1.1 " + code + "\r\nConnection: close\r\n\r\n" + body }
	for name, tt := range map[string]struct {
		// says is what the gateway sends once it has the request; "" is nothing, for ever.
		says string
		want api.Outcome
	}{
		"an answer":             {answer("200 OK", `{"outcome":"Answered","status":200,"body":"b2s="}`), api.Answered},
		"not sent":              {answer("200 OK", `{"outcome":"NotSent","reason":"no mapper","node":"another"}`), api.NotSent},
		"silence":               {"", api.Unknown},
		"no HTTP":               {"SSH-2.0-OpenSSH_9.6\r\n\r\n", api.Unknown},
		"no JSON":               {answer("200 OK", "done"), api.Unknown},
		"no outcome":            {answer("200 OK", `{}`), api.Unknown},
		"an outcome of its own": {answer("200 OK", `{"outcome":"Fine"}`), api.Unknown},
		"a status of its own":   {answer("200 OK", `{"outcome":"Answered","status":7}`), api.Unknown},
		"too much":              {answer("200 OK", `{"outcome":"Answered","status":200,"body":"`+strings.Repeat("A", 1<<20)+`"}`), api.Unknown},
		"a refusal":             {answer("400 Bad Request", "unreadable"), api.NotSent},
		"a redirection":         {answer("302 Found", ""), api.NotSent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud, gateway := net.Pipe()
				go func() {
					if r, err := http.ReadRequest(bufio.NewReader(gateway)); err == nil {
						_, _ = io.Copy(io.Discard, r.Body)
						if tt.says != "" {
							_, _ = io.WriteString(gateway, tt.says) // it may be too much
							_ = gateway.Close()
						}
					}
				}()
				h := devicecall.New(everybody{}, func(context.Context, types.NamespacedName) (string, error) { return "gw-1", nil },
					func(context.Context, string, string) (net.Conn, error) { return cloud, nil }, zap.NewNop())
				got := call(t, h, `{"method":"set","value":"1","milliseconds":10000}`)
				if got.Outcome != tt.want || got.Node != "gw-1" {
					t.Errorf("%+v, want %s", got, tt.want)
				}
				_ = gateway.Close()
			})
		})
	}
}

// call sends a request to the handler, behind a mux.
func call(t *testing.T, h http.Handler, body string) (answer api.Answer) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(devicecall.Pattern, h)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, api.Path+"/plant/boiler", strings.NewReader(body)))
	if w.Code != http.StatusOK {
		return api.Answer{Status: w.Code, Reason: w.Body.String()}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestHandler_Refuses: without the right, or with a request that cannot be understood, no gateway is reached.
func TestHandler_Refuses(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		body string
		code int
	}{
		"no right":     {errors.New("forbidden"), `{"method":"set","value":"1","milliseconds":1000}`, http.StatusForbidden},
		"no JSON":      {nil, "set", http.StatusBadRequest},
		"no time":      {nil, `{"method":"set","value":"1"}`, http.StatusBadRequest},
		"too long":     {nil, `{"method":"set","value":"1","milliseconds":3600000}`, http.StatusBadRequest},
		"past its end": {nil, `{"method":"set","value":"1","milliseconds":-5}`, http.StatusBadRequest},
		"too large":    {nil, `{"value":"` + strings.Repeat("x", api.MaxRequest) + `","milliseconds":1000}`, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			h := devicecall.New(everybody{tt.err}, func(context.Context, types.NamespacedName) (string, error) {
				t.Error("the Device is looked for")
				return "", nil
			}, func(context.Context, string, string) (net.Conn, error) {
				t.Error("the gateway is dialled")
				return nil, errors.New("no")
			}, zap.NewNop())
			if got := call(t, h, tt.body); got.Status != tt.code {
				t.Errorf("%+v", got)
			}
		})
	}
}
