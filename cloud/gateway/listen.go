package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Config of a Gateway. What has no address is off.
type Config struct {
	// Socket is a unix socket for CONNECT, mode 0600. The gateway that started last serves it.
	Socket string
	// Address is host:port for CONNECT, over TLS 1.3 with client certificates of ClientCAFile.
	Address string
	// ScrapeAddress is host:port for HTTPS requests of metrics, with bearer tokens.
	ScrapeAddress string
	// Direct serves nodes at ports of their own.
	Direct Direct
	// ReusePort lets several gateways of one user on one host share all addresses.
	ReusePort bool
	// CertFile and KeyFile serve both addresses. All certificate files are read again for each connection.
	CertFile, KeyFile, ClientCAFile string
	// KubeletCertFile and KubeletKeyFile show kubelets who reads their metrics; KubeletCAFile signs their certificates.
	KubeletCAFile, KubeletCertFile, KubeletKeyFile string
}

// front is one address with what it serves.
type front struct {
	listener net.Listener
	handler  http.Handler
	idle     func() // closes what the handler keeps open; nil: nothing
}

// listen opens all addresses, or none.
func (g *Gateway) listen(ctx context.Context) (fronts []front, err error) {
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
		fronts = append(fronts, front{listener: l, handler: http.HandlerFunc(g.connect)})
	}
	if g.cfg.Address != "" {
		l, err := g.listenTLS(ctx, g.cfg.Address, g.mutual)
		if err != nil {
			return fronts, fmt.Errorf("gateway address: %w", err)
		}
		fronts = append(fronts, front{listener: l, handler: http.HandlerFunc(g.connect)})
	}
	if g.cfg.ScrapeAddress != "" {
		l, err := g.listenTLS(ctx, g.cfg.ScrapeAddress, g.serving)
		if err != nil {
			return fronts, fmt.Errorf("gateway scrape address: %w", err)
		}
		handler, idle := g.scrapes()
		fronts = append(fronts, front{l, handler, idle})
	}
	return fronts, nil
}

// listenUnix takes the place of a socket that an ended gateway has left behind, and of one that still listens.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then it may be another gateway's
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (g *Gateway) listenTLS(ctx context.Context, address string, config func() (*tls.Config, error)) (net.Listener, error) {
	if _, err := config(); err != nil {
		return nil, err // now, and not at the first connection
	}
	l, err := g.listenTCP(ctx, address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return config() },
	}), nil
}

func (g *Gateway) listenTCP(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	if g.cfg.ReusePort {
		lc.Control = reusePort
	}
	return lc.Listen(ctx, "tcp", address)
}

func reusePort(_, _ string, raw syscall.RawConn) error {
	var failure error
	err := raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, failure)
}

// serving reads the gateway's own certificate.
func (g *Gateway) serving() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(g.cfg.CertFile, g.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}, nil
}

// mutual also asks for the caller's certificate.
func (g *Gateway) mutual() (*tls.Config, error) {
	config, err := g.serving()
	if err != nil {
		return nil, err
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs, err = pool(g.cfg.ClientCAFile)
	return config, err
}

// pool reads a file of authorities.
func pool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return p, nil
}
