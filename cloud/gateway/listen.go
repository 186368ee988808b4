package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/certs"
)

// Config configures a Gateway. A listener without an address is off.
type Config struct {
	// Socket is a unix socket for CONNECT, mode 0600. The gateway that started last serves it.
	Socket string
	// Address is host:port for CONNECT, over TLS 1.3 with client certificates of ClientCAFile.
	Address string
	// ScrapeAddress is host:port for HTTPS requests of metrics, with bearer tokens.
	ScrapeAddress string
	// TrustedNetworks are those in which a gateway's own report of the addresses of its pods and its host is accepted.
	TrustedNetworks []netip.Prefix
	// Direct serves nodes at ports of their own.
	Direct Direct
	// ReusePort lets several gateways of one user on one host share all addresses.
	ReusePort bool
	// CertFile and KeyFile serve both addresses. All certificate files are read again for each connection.
	CertFile, KeyFile, ClientCAFile string
	// KubeletCertFile and KubeletKeyFile authenticate the reader of metrics to kubelets; KubeletCAFile signs the
	// kubelets' certificates.
	KubeletCAFile, KubeletCertFile, KubeletKeyFile string
	// BlockedReason returns a text why a node may not be connected now, "" if it may; nil: every node may. It must not block.
	BlockedReason func(node string) string
	// UnreadyTimeout is how long a node that answers that it is not ready yet is retried; 0: 7 s.
	UnreadyTimeout time.Duration
}

// servedListener is a listener with its handler.
type servedListener struct {
	listener  net.Listener
	handler   http.Handler
	closeIdle func() // closes the connections that the handler keeps open; nil: none
}

// openListeners opens all listeners, or none.
func (g *Gateway) openListeners(ctx context.Context) (fronts []servedListener, err error) {
	defer func() {
		if err != nil {
			for _, f := range fronts {
				err = errors.Join(err, f.listener.Close())
			}
		}
	}()
	if g.cfg.Socket != "" {
		l, err := listenUnix(ctx, g.cfg.Socket)
		if err != nil {
			return fronts, fmt.Errorf("gateway socket: %w", err)
		}
		fronts = append(fronts, servedListener{listener: l, handler: http.HandlerFunc(g.proxy.serveConnect)})
	}
	if g.cfg.Address != "" {
		l, err := listenTLS(ctx, g.cfg, g.cfg.Address, g.cfg.ClientCAFile)
		if err != nil {
			return fronts, fmt.Errorf("gateway address: %w", err)
		}
		fronts = append(fronts, servedListener{listener: l, handler: http.HandlerFunc(g.proxy.serveConnect)})
	}
	if g.cfg.ScrapeAddress != "" {
		l, err := listenTLS(ctx, g.cfg, g.cfg.ScrapeAddress, "")
		if err != nil {
			return fronts, fmt.Errorf("gateway scrape address: %w", err)
		}
		handler, idle := g.scraper.scrapeHandler()
		fronts = append(fronts, servedListener{l, handler, idle})
	}
	return fronts, nil
}

// listenUnix replaces a socket that an ended gateway has left behind, or one that still listens.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then the file may be another gateway's
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// listenTLS requires client certificates if there is a CA file for them.
func listenTLS(ctx context.Context, cfg Config, address, clients string) (net.Listener, error) {
	config, err := certs.Listener{
		CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, ClientCAFile: clients, Auth: tls.RequireAndVerifyClientCert,
	}.Config()
	if err != nil {
		return nil, err
	}
	l, err := listenTCP(ctx, cfg, address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, config), nil
}

func listenTCP(ctx context.Context, cfg Config, address string) (net.Listener, error) {
	var lc net.ListenConfig
	if cfg.ReusePort {
		lc.Control = setReusePort
	}
	return lc.Listen(ctx, "tcp", address)
}

func setReusePort(_, _ string, raw syscall.RawConn) error {
	var failure error
	err := raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, failure)
}
