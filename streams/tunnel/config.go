package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

const (
	defaultStreams = 1024
	// defaultWindow allows 64 KiB in flight per stream at first: half a second of a 1 Mbit/s link.
	defaultWindow = 64 << 10
	// defaultMaxWindow allows 40 MB/s at a round trip of 100 ms.
	defaultMaxWindow = 4 << 20
	// defaultNodePool and defaultPool bound the growth of windows beyond their initial size. A hub server closes a client to which it
	// cannot send 64 MB (its max_pending), so the total of all nodes stays below that.
	defaultNodePool = 16 << 20
	defaultPool     = 32 << 20
	// defaultOpen plus one hop keeps the wait of an offline node's user below 3 s.
	defaultOpen = 2500 * time.Millisecond
	// Two keepalives may be lost or late. With a check every quarter of a keepalive, a lost peer is detected after at most 13 s.
	defaultKeepAlive   = 4 * time.Second
	defaultPeerTimeout = 12 * time.Second
	defaultBacklog     = 128
)

// Config limits streams. The zero value is usable; the two ends may differ.
type Config struct {
	// MaxStreams limits the streams of a node, opening ones included; 0 is 1,024.
	MaxStreams int
	// Window is how many unread bytes the peer may send on a new stream; 0 is 64 KiB.
	Window int
	// MaxWindow is how far a stream's window grows while its reader is fast; 0 is 4 MiB.
	MaxWindow int
	// NodePool bounds the growth of all windows of one node, Pool that of all nodes; 0 is 16 MiB and 32 MiB. So a node has at most
	// MaxStreams×Window + NodePool bytes in flight.
	NodePool, Pool int
	// OpenTimeout is how long Dial waits for a node; 0 is 2.5 s.
	OpenTimeout time.Duration
	// KeepAlive is how long a stream may be silent before it sends an empty frame; 0 is 4 s.
	KeepAlive time.Duration
	// PeerTimeout is how long a peer may be silent before the stream breaks; 0 is 12 s. It should be at least three times the KeepAlive of
	// the other end.
	PeerTimeout time.Duration
	// IdleTimeout breaks streams that carried no byte for so long; 0 is never.
	IdleTimeout time.Duration
	// Backlog is how many streams may wait for a Listener's Accept; 0 is 128.
	Backlog int
}

func (c Config) withDefaults() Config {
	c.MaxStreams = cmp.Or(c.MaxStreams, defaultStreams)
	c.Window = cmp.Or(c.Window, defaultWindow)
	c.MaxWindow = max(cmp.Or(c.MaxWindow, defaultMaxWindow), c.Window)
	c.NodePool = cmp.Or(c.NodePool, defaultNodePool)
	c.Pool = cmp.Or(c.Pool, defaultPool)
	c.Backlog = cmp.Or(c.Backlog, defaultBacklog)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, defaultOpen)
	c.KeepAlive = cmp.Or(c.KeepAlive, defaultKeepAlive)
	c.PeerTimeout = cmp.Or(c.PeerTimeout, defaultPeerTimeout)
	return c
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxStreams", int64(c.MaxStreams)},
		{"Window", int64(c.Window)},
		{"MaxWindow", int64(c.MaxWindow)},
		{"NodePool", int64(c.NodePool)},
		{"Pool", int64(c.Pool)},
		{"OpenTimeout", int64(c.OpenTimeout)},
		{"KeepAlive", int64(c.KeepAlive)},
		{"PeerTimeout", int64(c.PeerTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)},
		{"Backlog", int64(c.Backlog)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s: is negative", f.name))
		}
	}
	for _, window := range []struct {
		name  string
		bytes int
	}{{"Window", c.Window}, {"MaxWindow", c.MaxWindow}} {
		if window.bytes > 1<<30 { // sent as 32 bits
			errs = append(errs, fmt.Errorf("%s: more than 1 GiB", window.name))
		}
	}
	return errors.Join(errs...)
}
