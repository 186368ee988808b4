package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/edged/hostaddr"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/listen"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/streams/deliver"
)

// localAPIConfig returns the local API's configuration; cert is nil for a kubelet outside, part without devices.
func localAPIConfig(f *foundation, delivery *deliver.Delivery, cert *kubelet.ServingCert, part *devices.Devices) localapi.Config {
	c := f.cfg.LocalAPI
	cfg := localapi.Config{
		Node: f.cfg.Node, UnixSocket: c.Socket, Address: c.Address, CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile,
		ScopeGrace: time.Duration(c.Pods.ScopeGrace), Metrics: f.metrics, LinkBudget: delivery.LinkBudget,
		Online: func() bool {
			up, _ := f.link.State()
			return up
		},
	}
	if cert != nil {
		cfg.Kubelet = podproxy.Endpoint{
			Address: kubeletAddress(f.cfg), Certificate: func() (*x509.Certificate, error) { return cert.Local(), nil },
		}
	}
	if part != nil {
		cfg.Devices = part.Handler()
	}
	if endpoint := runtimeEndpoint(f.cfg); endpoint != "" {
		cfg.Stopper = kubelet.ContainerStopper{Endpoint: endpoint}
	}
	if address, err := netip.ParseAddrPort(c.Pods.Address); err == nil && !c.Pods.Disabled { // it was validated
		cfg.Pods = listen.PodsConfig{Dir: f.cfg.Dir, Address: address, ClaimAddress: hostaddr.Claim}
		cfg.TokenExpiryGrace = time.Duration(c.Pods.ExpiredTokens)
		if !c.Pods.Outside {
			cfg.Pods.IsRemotePeer = hostaddr.IsRemotePeer
		}
	}
	return cfg
}

// newSocketPart returns the part that gives a group access to the local API's socket. It runs when the socket exists with mode
// 0600, so no other user can ever open it.
func newSocketPart(cfg config.LocalAPI) lifecycle.Part {
	ready := make(chan struct{})
	return lifecycle.Part{Name: "socket", Ready: ready, Start: func(ctx context.Context) error {
		if cfg.SocketGroup != "" {
			if err := shareSocket(cfg.Socket, cfg.SocketGroup); err != nil {
				return fmt.Errorf("localAPI.socketGroup: %w", err)
			}
		}
		close(ready)
		<-ctx.Done()
		return nil
	}}
}

const sharedSocketMode = 0o660

func shareSocket(path, group string) error {
	id, err := strconv.Atoi(group)
	if err != nil {
		found, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		if id, err = strconv.Atoi(found.Gid); err != nil {
			return fmt.Errorf("group %s: %w", group, err)
		}
	}
	return errors.Join(os.Chown(path, -1, id), os.Chmod(path, sharedSocketMode))
}
