package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
)

// kubeletEndpoint returns the kubelet's endpoint for the local API: the kubelet of this process, or a stock one.
func (n *Node) kubeletEndpoint() podproxy.Endpoint {
	k := n.cfg.Kubelet
	return podproxy.Endpoint{
		Address:     localDialAddress(net.JoinHostPort(k.Address, strconv.Itoa(int(k.Port)))),
		Certificate: n.kubeletCertificate,
	}
}

// kubeletCertificate returns the certificate that the kubelet presents to programs of this machine.
func (n *Node) kubeletCertificate() (*x509.Certificate, error) {
	if kubelet := n.localKubelet.Load(); kubelet != nil {
		return kubelet.LocalCertificate(), nil
	}
	if !n.cfg.Kubelet.External {
		return nil, errors.New("the kubelet is still to be started")
	}
	if n.cfg.Kubelet.CertFile == "" {
		return nil, errors.New("kubelet.certFile is not set, so a stock kubelet cannot be told from another program")
	}
	return certs.ReadCertificate(n.cfg.Kubelet.CertFile)
}

// runtimeEndpoint returns the runtime's CRI socket: the configured one, or the hollow runtime's.
func (n *Node) runtimeEndpoint() string {
	if n.cfg.Runtime.Hollow && n.cfg.Runtime.Endpoint == "" {
		return "unix://" + n.socketPath("cri.sock")
	}
	return n.cfg.Runtime.Endpoint
}

// socketPart returns the part that gives a group access to the local API's socket. It runs when the socket exists with mode
// 0600, so no other user can ever open it.
func (n *Node) socketPart() lifecycle.Part {
	ready := make(chan struct{})
	return lifecycle.Part{Name: "socket", Ready: ready, Start: func(ctx context.Context) error {
		if group := n.cfg.LocalAPI.SocketGroup; group != "" {
			if err := shareSocket(n.cfg.LocalAPI.Socket, group); err != nil {
				return fmt.Errorf("localAPI.socketGroup: %w", err)
			}
		}
		close(ready)
		<-ctx.Done()
		return nil
	}}
}

const sharedSocketMode = 0o660

// socketDirMode returns the mode of the socket's folder if New creates it: users who may open the socket must be able to enter it.
func (n *Node) socketDirMode() os.FileMode {
	if n.cfg.LocalAPI.SocketGroup != "" {
		return 0o711
	}
	return dirMode
}

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
