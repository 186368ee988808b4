package peer

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
)

// protocolName is what gRPC shows as the security protocol.
const protocolName = "unix-peer"

// Info is what the credentials say of a connection.
type Info struct {
	credentials.CommonAuthInfo
	Peer Peer
	// Err says why Peer is not known. Then Peer is empty.
	Err error
}

// AuthType implements credentials.AuthInfo.
func (Info) AuthType() string { return protocolName }

// FromContext returns the peer of a call.
func FromContext(ctx context.Context) (Peer, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return Peer{}, errors.New("no connection")
	}
	info, ok := p.AuthInfo.(Info)
	if !ok {
		return Peer{}, errors.New("the connection is not that of a unix socket")
	}
	return info.Peer, info.Err
}

// Credentials are gRPC credentials of a server on a unix socket, for clients without any. Each connection costs one look at /proc.
type Credentials struct {
	// CgroupRoot is that of PodOfCgroup.
	CgroupRoot string
	// Admit waits until a peer may have one more connection. The connection gets what it returns to call at its end; an error closes it at once.
	// Nil admits all. Peers that are not known have the empty identity.
	Admit func(identity string) (release func(), err error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *Credentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil, nil, errors.New("the connection is not that of a socket")
	}
	info := Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}} // the kernel carries it
	info.Peer, info.Err = Identify(socket, c.CgroupRoot)
	if c.Admit == nil {
		return conn, info, nil
	}
	identity := ""
	if info.Err == nil {
		identity = info.Peer.Identity()
	}
	release, err := c.Admit(identity)
	if err != nil {
		return nil, nil, err
	}
	return &admitted{Conn: conn, release: sync.OnceFunc(release)}, info, nil
}

// admitted is a connection that counts until it is closed.
type admitted struct {
	net.Conn
	release func()
}

func (a *admitted) Close() error {
	a.release()
	return a.Conn.Close()
}

// ClientHandshake implements credentials.TransportCredentials. The credentials are a server's.
func (*Credentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (*Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: protocolName}
}

// Clone implements credentials.TransportCredentials.
func (c *Credentials) Clone() credentials.TransportCredentials { clone := *c; return &clone }

// OverrideServerName implements credentials.TransportCredentials.
//
// Deprecated: gRPC asks for it still.
func (*Credentials) OverrideServerName(string) error { return nil }
