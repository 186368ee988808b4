package gateway_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/frond-edge/frond/cloud/gateway"
)

// TestGateway_BlockedNodeIsRefused: a blocked node is not dialled, and a stream that was being opened when it was
// blocked is closed.
func TestGateway_BlockedNodeIsRefused(t *testing.T) {
	w := &gatewayFixture{
		nodes:   map[string]gateway.Node{"edge-1": {UID: "one", Edge: true, KubeletPort: 10250}},
		servers: map[string]string{"edge-1:10250": startEcho(t, "")},
	}
	var asked, from atomic.Int32
	from.Store(1)
	socket := socketPath(t)
	startGateway(t, gateway.Config{Socket: socket, BlockedReason: func(node string) string {
		if n := asked.Add(1); node == "edge-1" && n >= from.Load() {
			return "it was revoked"
		}
		return ""
	}}, w, nil)
	for what, after := range map[string]int32{"before it is dialled": 1, "while it is dialled": 2} {
		asked.Store(0)
		from.Store(after)
		conn := dialUnix(t, socket)
		if _, refused := requestConnect(t, conn, "edge-1:10250"); !strings.HasPrefix(refused, "503 node edge-1 is shut out: it was revoked") {
			t.Errorf("%s: %q", what, refused)
		}
	}
	asked.Store(0)
	from.Store(100)
	conn := dialUnix(t, socket)
	r, refused := requestConnect(t, conn, "edge-1:10250")
	if refused != "" {
		t.Fatalf("let in again: %q", refused)
	}
	checkEcho(t, conn, r, "to the node")
}
