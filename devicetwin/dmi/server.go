package dmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

const (
	// idleConnection is when a connection without calls is closed; gRPC opens another one for the next call.
	idleConnection = 10 * time.Minute
	// smallBuffer is that of a connection, of which there may be hundreds. A report has 200 bytes.
	smallBuffer = 4 << 10
	// maxStreams is how many calls a mapper may make at once on one connection: 25 ms each are 5,000 a second.
	maxStreams = 128
)

// Server serves the mappers of a gateway.
type Server struct {
	cfg      Config
	registry *mapper.Registry
	service  *service
	ready    chan struct{}
	// done is closed when no connection is to wait any more.
	done chan struct{}
}

// New returns a server. It opens nothing.
func New(cfg Config, twin Twin, auth Authorizer, store mapper.RecordStore, sink mapper.DeliverySink, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("dmi: %w", err)
	}
	cfg = cfg.withDefaults()
	metrics, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("dmi: register metrics: %w", err)
	}
	registry := mapper.NewRegistry(mapper.Config{
		Dir: cfg.Dir, CgroupRoot: cfg.CgroupRoot, CallTimeout: cfg.CallTimeout, Settle: cfg.Settle, Unreachable: cfg.Unreachable,
	}, store, sink, metrics.calls, log)
	s := &Server{cfg: cfg, registry: registry, ready: make(chan struct{}), done: make(chan struct{})}
	s.service = &service{cfg: cfg, registry: registry, twin: twin, auth: auth, limiter: newLimiter(s.done), metrics: metrics, log: log}
	return s, nil
}

// Ready is closed when mappers can register.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// SetDevice takes a Device of this node that came or changed. The object must not change afterwards.
func (s *Server) SetDevice(device *devices.Device) {
	s.registry.SetDevice(types.NamespacedName{Namespace: device.Namespace, Name: device.Name}, device)
}

// RemoveDevice says that a Device has gone.
func (s *Server) RemoveDevice(id types.NamespacedName) { s.registry.SetDevice(id, nil) }

// SetModel takes a DeviceModel that came or changed. The object must not change afterwards.
func (s *Server) SetModel(model *devices.DeviceModel) {
	s.registry.SetModel(types.NamespacedName{Namespace: model.Namespace, Name: model.Name}, model)
}

// RemoveModel says that a DeviceModel has gone. Devices that have it stay as they are.
func (s *Server) RemoveModel(id types.NamespacedName) { s.registry.SetModel(id, nil) }

// Synced says that all Devices of the node were set. No device is removed from a mapper before.
func (s *Server) Synced() { s.registry.Synced() }

// IdentityOf returns who has registered a protocol, as peer.Peer.Identity has it, or "".
func (s *Server) IdentityOf(protocol string) string { return s.registry.IdentityOf(protocol) }

// Start serves mappers until ctx ends. It may be called once.
func (s *Server) Start(ctx context.Context) error {
	listener, err := listen(ctx, s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("dmi: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	err = s.registry.Load(ctx, func(run func(ctx context.Context)) {
		g.Go(func() error {
			run(gctx)
			return nil
		})
	})
	if err != nil {
		return errors.Join(fmt.Errorf("dmi: %w", err), listener.Close())
	}
	g.Go(func() error { return s.serve(gctx, listener) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// serve answers mappers until ctx ends.
func (s *Server) serve(ctx context.Context, listener *net.UnixListener) error {
	made, err := os.Lstat(filepath.Join(s.cfg.Dir, mapper.SocketName))
	if err != nil {
		return errors.Join(fmt.Errorf("dmi: the socket: %w", err), listener.Close())
	}
	server := grpc.NewServer(
		grpc.Creds(&peer.Credentials{CgroupRoot: s.cfg.CgroupRoot, Admit: s.admit}), grpc.ConnectionTimeout(2*maxWait),
		grpc.MaxRecvMsgSize(maxReport), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(smallBuffer),
		grpc.ReadBufferSize(smallBuffer), grpc.WriteBufferSize(smallBuffer),
		grpc.WaitForHandlers(true), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConnection}),
		// A mapper may look whether edgecore is there as often as it likes.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	dmipb.RegisterDeviceManagerServiceServer(server, s.service)
	reflection.Register(server) // as in KubeEdge
	var g errgroup.Group
	g.Go(func() error {
		<-ctx.Done()
		s.registry.Stop()
		close(s.done)
		server.Stop()
		return nil
	})
	close(s.ready)
	err = server.Serve(listener)
	removeSocket(s.cfg.Dir, made)
	if ctx.Err() == nil {
		return fmt.Errorf("dmi: serve: %w", err) // errgroup ends ctx
	}
	return g.Wait()
}

func (s *Server) admit(identity string) (func(), error) {
	release, err := s.service.limiter.admit(identity)
	if err != nil {
		s.service.metrics.refused.WithLabelValues(refusedFlood).Inc()
	}
	return release, err
}
