package mapper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// maxReply bounds what a mapper may answer: names.
const maxReply = 64 << 10

// link is the connection to a mapper. A nil link is none.
type link struct {
	conn   *grpc.ClientConn
	client dmipb.DeviceMapperServiceClient
	// timeout bounds a wait for the connection.
	timeout time.Duration

	mu      sync.Mutex
	lastErr error // guarded by mu: why the last dial failed
}

// newLink returns a link that dials when it is first awaited. It fails only for settings that gRPC does not know.
func newLink(cfg Config, r Registration) *link {
	l := &link{timeout: cfg.CallTimeout}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := dialMapper(ctx, cfg, r)
		l.mu.Lock()
		l.lastErr = err
		l.mu.Unlock()
		return conn, err
	}
	conn, err := grpc.NewClient("passthrough:///"+SocketName,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the peer of the socket is checked instead
		grpc.WithContextDialer(dial), grpc.WithNoProxy(), grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithConnectParams(grpc.ConnectParams{
			// A dial costs 0.1 ms; a mapper listens about a second after it has registered.
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: cfg.CallTimeout,
		}))
	if err != nil {
		l.lastErr = err
		return l
	}
	l.conn, l.client = conn, dmipb.NewDeviceMapperServiceClient(conn)
	return l
}

// dialMapper connects to the socket of a mapper, and checks that it is this mapper's: each pod with the folder can replace a socket in it.
func dialMapper(ctx context.Context, cfg Config, r Registration) (net.Conn, error) {
	if err := CheckAddress(cfg.Dir, r.Address); err != nil {
		return nil, err
	}
	info, err := os.Lstat(r.Address)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is no socket", r.Address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Address)
	if err != nil {
		return nil, err
	}
	if err := checkListener(conn, cfg.CgroupRoot, r.Identity); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func checkListener(conn net.Conn, cgroupRoot, identity string) error {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("no unix socket")
	}
	listener, err := peer.Identify(socket, cgroupRoot)
	if err != nil {
		return fmt.Errorf("who listens: %w", err)
	}
	if listener.Identity() != identity {
		return fmt.Errorf("%s listens, not %s, which has registered", listener.Identity(), identity)
	}
	return nil
}

// SocketName is the name of edgecore's own socket in the folder, as in KubeEdge.
const SocketName = "dmi.sock"

// CheckAddress allows a mapper sockets directly in the folder.
func CheckAddress(dir, address string) error {
	if filepath.Dir(address) != dir || filepath.Clean(address) != address || filepath.Base(address) == SocketName {
		return fmt.Errorf("the address %q of a mapper has to be a socket of its own directly in %s", address, dir)
	}
	return nil
}

// await returns whether the mapper can be called, after at most the timeout. It ends early when the link is closed.
func (l *link) await(ctx context.Context) bool {
	if l.conn == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	for {
		switch state := l.conn.GetState(); state {
		case connectivity.Ready:
			return true
		case connectivity.Shutdown:
			return false
		default:
			l.conn.Connect()
			if !l.conn.WaitForStateChange(ctx, state) {
				return false
			}
		}
	}
}

// probe reports whether the mapper answers. To create a model that it has changes nothing, and in KubeEdge's framework waits for the same lock as a
// call that is stuck in a driver.
func (l *link) probe(ctx context.Context, model *dmipb.DeviceModel) bool {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	_, err := l.client.CreateDeviceModel(ctx, &dmipb.CreateDeviceModelRequest{Model: model})
	return outcomeOf(err) != broken
}

func (l *link) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastErr
}

func (l *link) close() {
	if l != nil && l.conn != nil {
		_ = l.conn.Close() // it fails only when it is closed
	}
}
