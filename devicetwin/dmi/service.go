package dmi

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// syncWait is how long a registration waits for the Devices of the store; a mapper gives up after one second.
const syncWait = 500 * time.Millisecond

// maxProtocol is the longest name of a protocol, in bytes: that of a file.
const maxProtocol = 255

// The reasons of refused calls, values of a metric.
const (
	refusedPeer    = "peer"
	refusedForm    = "form"
	refusedValue   = "value"
	refusedStorage = "storage"
	refusedFlood   = "flood"
)

// service answers mappers.
type service struct {
	dmipb.UnimplementedDeviceManagerServiceServer
	cfg      Config
	registry *mapper.Registry
	twin     Twin
	auth     Authorizer
	limiter  *limiter
	metrics  *metrics
	log      *zap.Logger
}

func (s *service) refuse(code codes.Code, reason, format string, args ...any) error {
	s.metrics.refused.WithLabelValues(reason).Inc()
	return status.Errorf(code, format, args...)
}

// caller returns the mapper that calls.
func (s *service) caller(ctx context.Context) (peer.Peer, error) {
	p, err := peer.FromContext(ctx)
	if err != nil {
		return p, s.refuse(codes.Unauthenticated, refusedPeer, "which pod is calling: %v", err)
	}
	if p.Pod == "" && (int(p.UID) != os.Geteuid() || !s.cfg.AllowHost) {
		return p, s.refuse(codes.PermissionDenied, refusedPeer, "process %d of user %d is in no pod, and such processes may not be mappers here", p.PID, p.UID)
	}
	return p, nil
}

// authorize asks whether the caller may serve a protocol. A process outside pods, which caller has let pass, may serve each one.
func (s *service) authorize(ctx context.Context, p peer.Peer, protocol string) error {
	if p.Pod == "" {
		return nil
	}
	if err := s.auth.Authorize(ctx, p, protocol); err != nil {
		return s.refuse(codes.PermissionDenied, refusedPeer, "pod %s may not serve protocol %q: %v", p.Pod, protocol, err)
	}
	return nil
}

// MapperRegister implements dmipb.DeviceManagerServiceServer.
func (s *service) MapperRegister(ctx context.Context, request *dmipb.MapperRegisterRequest) (*dmipb.MapperRegisterResponse, error) {
	p, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	info := request.GetMapper()
	r := mapper.Registration{Name: info.GetName(), Address: strings.TrimPrefix(string(info.GetAddress()), "unix://"), Identity: p.Identity(), PID: p.PID}
	if info.GetProtocol() == "" || len(info.GetProtocol()) > maxProtocol {
		return nil, s.refuse(codes.InvalidArgument, refusedForm, "the mapper's protocol has %d bytes, 1 to %d are allowed", len(info.GetProtocol()), maxProtocol)
	}
	if err := mapper.CheckAddress(s.cfg.Dir, r.Address); err != nil {
		return nil, s.refuse(codes.InvalidArgument, refusedForm, "%v", err)
	}
	if err := s.authorize(ctx, p, info.GetProtocol()); err != nil {
		return nil, err
	}
	if before := s.registry.IdentityOf(info.GetProtocol()); before != "" && before != r.Identity {
		s.log.Warn("mapper replaces the one of another pod", zap.String("protocol", info.GetProtocol()), zap.String("before", before), zap.String("peer", r.Identity))
	}
	s.registry.AwaitSync(ctx, syncWait)
	response := s.registry.Register(ctx, info.GetProtocol(), r, request.GetWithData())
	if response == nil {
		return nil, status.Error(codes.Unavailable, "edgecore is stopping")
	}
	s.log.Info("mapper registered", zap.String("mapper", r.Name), zap.String("protocol", info.GetProtocol()), zap.String("peer", r.Identity),
		zap.Int("devices", len(response.GetDeviceList())))
	return response, nil
}

// ReportDeviceStatus implements dmipb.DeviceManagerServiceServer.
func (s *service) ReportDeviceStatus(ctx context.Context, request *dmipb.ReportDeviceStatusRequest) (*dmipb.ReportDeviceStatusResponse, error) {
	received := time.Now()
	id := types.NamespacedName{Namespace: request.GetDeviceNamespace(), Name: request.GetDeviceName()}
	update := devicetwin.Update{Properties: map[string]devicetwin.PropertyUpdate{}}
	for _, t := range request.GetReportedDevice().GetTwins() {
		update.Properties[t.GetPropertyName()] = propertyOf(t)
	}
	err := s.report(ctx, "values", id, func(ctx context.Context) error {
		if len(update.Properties) == 0 {
			return nil
		}
		return s.twin.ReportValues(ctx, id, update, received)
	})
	if err != nil {
		return nil, err
	}
	return &dmipb.ReportDeviceStatusResponse{}, nil
}

// ReportDeviceStates implements dmipb.DeviceManagerServiceServer.
func (s *service) ReportDeviceStates(ctx context.Context, request *dmipb.ReportDeviceStatesRequest) (*dmipb.ReportDeviceStatesResponse, error) {
	received := time.Now()
	id := types.NamespacedName{Namespace: request.GetDeviceNamespace(), Name: request.GetDeviceName()}
	err := s.report(ctx, "state", id, func(ctx context.Context) error { return s.twin.ReportState(ctx, id, request.GetState(), received) })
	if err != nil {
		return nil, err
	}
	return &dmipb.ReportDeviceStatesResponse{}, nil
}

// report checks that the caller serves the device, and takes what it reports. An unknown device is no error, as in KubeEdge: a mapper goes on for a
// while after its device has gone. Before all Devices are known none is unknown: a mapper does not register again when edgecore restarts.
func (s *service) report(ctx context.Context, kind string, id types.NamespacedName, take func(ctx context.Context) error) error {
	p, err := s.caller(ctx)
	if err != nil {
		return err
	}
	if _, known := s.registry.ProtocolOf(id); !known && !s.registry.AwaitSync(ctx, maxWait) {
		return s.refuse(codes.Unavailable, refusedStorage, "device %s: edgecore has not read its Devices yet", id)
	}
	protocol, known := s.registry.ProtocolOf(id)
	if !known {
		s.metrics.unknown.Inc()
		return nil
	}
	if bound := s.registry.IdentityOf(protocol); bound == "" {
		err = s.authorize(ctx, p, protocol)
	} else if bound != p.Identity() {
		err = s.refuse(codes.PermissionDenied, refusedPeer, "device %s belongs to the mapper of protocol %q, which is %s and not %s", id, protocol, bound, p.Identity())
	}
	if err != nil {
		return err
	}
	release, err := s.limiter.report(ctx, p.Identity())
	if err != nil {
		s.metrics.refused.WithLabelValues(refusedFlood).Inc()
		return err
	}
	defer release()
	var refusal *devicetwin.Refusal
	switch err := take(ctx); {
	case err == nil:
		s.metrics.reports.WithLabelValues(kind).Inc()
		return nil
	case errors.Is(err, devicetwin.ErrNoDevice):
		s.metrics.unknown.Inc()
		return nil
	case errors.As(err, &refusal):
		return s.refuse(codes.InvalidArgument, refusedValue, "device %s: %v", id, refusal)
	default:
		return s.refuse(codes.Unavailable, refusedStorage, "device %s: %v", id, err)
	}
}

// propertyOf converts a value that a mapper reports. A mapper of KubeEdge's framework gives no time, one in Java gives milliseconds.
func propertyOf(t *dmipb.Twin) devicetwin.PropertyUpdate {
	var p devicetwin.PropertyUpdate
	if r := t.GetReported(); r != nil {
		p.Actual, p.ActualTime, p.Type = &r.Value, timeOf(r), r.GetMetadata()["type"]
	}
	if d := t.GetObservedDesired(); d.GetValue() != "" { // an empty one says that there is none
		p.Expected, p.ExpectedTime = &d.Value, timeOf(d)
	}
	return p
}

// timeOf returns the milliseconds of a value's metadata, 0 if there are none.
func timeOf(t *dmipb.TwinProperty) int64 {
	ms, err := strconv.ParseInt(t.GetMetadata()["timestamp"], 10, 64)
	if err != nil {
		return 0
	}
	return ms
}
