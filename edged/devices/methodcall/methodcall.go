// Package methodcall calls the methods of a gateway's devices at the REST servers of their mappers, for the cloud.
//
// A call reaches only the process that has registered the device's protocol, at one path, for a method and a property of the Device, with a value that
// its model allows. It is sent at most once, and not after its time. The package knows nothing of tunnels and of who may call: cloudcore
// decides that.
package methodcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
)

const (
	// dialTimeout bounds the connection to a mapper, which is on this machine.
	dialTimeout = 2 * time.Second
	// headerTimeout bounds how long the cloud may take to send a request, writeTimeout an answer.
	headerTimeout, writeTimeout = 5 * time.Second, devicecall.MaxTimeout + 10*time.Second
	// stopTimeout lets answers end at the stop.
	stopTimeout = time.Second
)

// Source has the Devices of the gateway.
type Source interface {
	// Device returns a Device of this gateway with its model, which is nil if it is not there; both are nil if there is no Device.
	Device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel)
}

// Locator finds mappers.
type Locator interface {
	// Locate returns the address of the REST server of the mapper that has registered a protocol, as host:port.
	Locate(ctx context.Context, protocol string) (address string, err error)
}

// Server serves calls.
type Server struct {
	source  Source
	locator Locator
	client  *http.Client
	now     func() time.Time
	log     *zap.Logger
}

// New returns a Server. It starts nothing.
func New(source Source, locator Locator, log *zap.Logger) *Server {
	return &Server{
		source: source, locator: locator, now: time.Now, log: log,
		client: &http.Client{
			// A new connection for each call: one that was used before may end in the moment of the next call, and the call would be sent again.
			Transport: &http.Transport{
				DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // to where a mapper likes
		},
	}
}

// arrivedKey is the key of the time at which a connection was made, in the context of its requests.
type arrivedKey struct{}

// Serve serves calls on a listener, which it closes, until ctx ends, and then returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+devicecall.EdgePath, s.serveCall)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: headerTimeout, MaxHeaderBytes: 16 << 10, ErrorLog: zap.NewStdLog(zap.NewNop()),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, arrivedKey{}, s.now())
		},
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			return fmt.Errorf("calls of devices' methods: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stop) != nil {
			_ = server.Close() // the outcome of what is on its way is unknown in the cloud
		}
		return nil
	})
	return g.Wait()
}

func (s *Server) serveCall(w http.ResponseWriter, r *http.Request) {
	var request devicecall.EdgeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, devicecall.MaxRequest)).Decode(&request); err != nil {
		http.Error(w, "the request is unreadable: "+err.Error(), http.StatusBadRequest)
		return
	}
	arrived, ok := r.Context().Value(arrivedKey{}).(time.Time)
	if !ok {
		arrived = s.now()
	}
	most := min(time.Duration(request.Milliseconds)*time.Millisecond, devicecall.MaxTimeout)
	ctx, cancel := context.WithDeadline(r.Context(), arrived.Add(most))
	defer cancel()
	answer := s.Call(ctx, &request)
	s.log.Info("device method called", zap.String("user", request.User), zap.String("device", request.Namespace+"/"+request.Name),
		zap.String("method", request.Method), zap.String("property", request.Property), zap.String("outcome", string(answer.Outcome)),
		zap.Int("status", answer.Status), zap.String("reason", answer.Reason), zap.Duration("took", s.now().Sub(arrived)))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the cloud is gone
}

// Call calls a method, at most once, and returns what became of it. It sends nothing after ctx has ended.
func (s *Server) Call(ctx context.Context, r *devicecall.EdgeRequest) devicecall.Answer {
	protocol, path, err := s.admit(r)
	if err != nil {
		return devicecall.Answer{Outcome: devicecall.Refused, Reason: err.Error()}
	}
	address, err := s.locator.Locate(ctx, protocol)
	if err != nil {
		return notSent(err)
	}
	return s.send(ctx, "http://"+address+path)
}

func notSent(err error) devicecall.Answer {
	return devicecall.Answer{Outcome: devicecall.NotSent, Reason: err.Error()}
}

// admit returns the protocol and the path of a call, or why it is refused.
func (s *Server) admit(r *devicecall.EdgeRequest) (protocol, path string, err error) {
	device, model := s.source.Device(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	if device == nil {
		return "", "", fmt.Errorf("the gateway has no Device %s/%s", r.Namespace, r.Name)
	}
	property, err := PropertyOf(device, r.Method, r.Property)
	if err != nil {
		return "", "", err
	}
	if err := devicetwin.CheckValue(device, model, property, r.Value); err != nil {
		return "", "", err
	}
	path = "/api/v1/devicemethod"
	for _, part := range []string{device.Namespace, device.Name, r.Method, property, r.Value} {
		if strings.Contains(part, "/") || part == "." || part == ".." { // KubeEdge's framework splits the path once it is decoded
			return "", "", fmt.Errorf("%q cannot be sent: mappers take no slash and no . or .. in a path", part)
		}
		path += "/" + url.PathEscape(part)
	}
	return device.Spec.Protocol.ProtocolName, path, nil
}

// PropertyOf returns the property that a call of a method writes; named may be "" for a method with one property.
func PropertyOf(device *devices.Device, method, named string) (string, error) {
	i := slices.IndexFunc(device.Spec.Methods, func(m devices.DeviceMethod) bool { return m.Name == method })
	if i < 0 || method == "" {
		names := make([]string, len(device.Spec.Methods))
		for i, m := range device.Spec.Methods {
			names[i] = m.Name
		}
		return "", fmt.Errorf("the Device has no method %q; it has: %s", method, strings.Join(names, ", "))
	}
	properties := device.Spec.Methods[i].PropertyNames
	switch {
	case named == "" && len(properties) == 1:
		return properties[0], nil
	case named != "" && slices.Contains(properties, named):
		return named, nil
	}
	return "", fmt.Errorf("method %s writes one of its properties, not %q; they are: %s", method, named, strings.Join(properties, ", "))
}

// send sends the one request.
func (s *Server) send(ctx context.Context, target string) devicecall.Answer {
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(traced, http.MethodGet, target, nil)
	if err != nil {
		return notSent(err)
	}
	if err := ctx.Err(); err != nil {
		return notSent(errors.New("the time was over before the call was sent"))
	}
	response, err := s.client.Do(request)
	switch {
	case err != nil && !connected.Load():
		return notSent(fmt.Errorf("the mapper's REST server does not answer: %w", err))
	case err != nil:
		return devicecall.Answer{Outcome: devicecall.Unknown, Reason: "sent to the mapper, which did not answer: " + err.Error()}
	}
	defer func() { _ = response.Body.Close() }() // it was read as far as it counts
	body, err := io.ReadAll(io.LimitReader(response.Body, devicecall.MaxBody+1))
	if err != nil {
		return devicecall.Answer{Outcome: devicecall.Unknown, Status: response.StatusCode, Reason: "the mapper's answer is incomplete: " + err.Error()}
	}
	answer := devicecall.Answer{Outcome: devicecall.Answered, Status: response.StatusCode, Body: body}
	if len(body) > devicecall.MaxBody {
		answer.Body, answer.Truncated = body[:devicecall.MaxBody], true
	}
	return answer
}
