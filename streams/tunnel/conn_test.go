package tunnel_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/frond-edge/frond/streams/tunnel"
)

// The contract of net.Conn, over a real hub and a real leaf, from either end.
func TestConn_NetConnContract(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	make := func(swap bool) nettest.MakePipe {
		return func() (c1, c2 net.Conn, stop func(), err error) {
			cloud, node, err := e.openStream(t.Context())
			if err != nil {
				return nil, nil, nil, err
			}
			c1, c2 = cloud, node
			if swap {
				c1, c2 = node, cloud
			}
			return c1, c2, func() {
				_ = cloud.Close()
				_ = node.Close()
			}, nil
		}
	}
	t.Run("from the cloud", func(t *testing.T) { nettest.TestConn(t, make(false)) })
	t.Run("from the node", func(t *testing.T) { nettest.TestConn(t, make(true)) })
}
