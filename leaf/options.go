package leaf

import (
	"github.com/nats-io/nats-server/v2/server"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// maxMemory is JetStream's memory for streams and consumers without a file: only reading consumers live there.
	maxMemory = 8 << 20
	// maxPayload holds the largest Kubernetes object (etcd: 1.5 MiB) as base64 in a call's reply, with room to spare.
	maxPayload = 8 << 20
	// maxPings is how many pings may stay unanswered.
	maxPings = 2
	// ioThreads is how many file operations run at once; a gateway's single card gains nothing from more.
	ioThreads = 4
)

// serverOptions returns the server's configuration without its link.
func serverOptions(cfg Config) *server.Options {
	o := &server.Options{
		ServerName:             cfg.Node,
		DontListen:             true,
		NoSigs:                 true,
		PingInterval:           cfg.PingInterval,
		MaxPingsOut:            maxPings,
		MaxPayload:             maxPayload,
		JetStream:              true,
		JetStreamDomain:        wire.Escape(cfg.Node),
		JetStreamMaxMemory:     maxMemory,
		JetStreamMaxStore:      cfg.MaxStore,
		JetStreamConcurrentIOs: ioThreads,
		StoreDir:               cfg.Dir,
		SyncAlways:             true, // an acked write survives a power cut, at the cost of one sync (measured 0.4 ms)
	}
	o.LeafNode.Compression.Mode = server.CompressionOff // its decoder runs before authentication, where it once had a panic
	o.LeafNode.DialTimeout = cfg.DialTimeout
	// The link supervisor dials again long before. This interval is the fallback.
	o.LeafNode.ReconnectInterval = 2 * cfg.StalledMax
	return o
}
