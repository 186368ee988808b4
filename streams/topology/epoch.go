package topology

import (
	"github.com/nats-io/nats.go/jetstream"
)

// StreamEpoch identifies one life of a stream: a stream that was deleted and created again has another epoch.
func StreamEpoch(info *jetstream.StreamInfo) string {
	return info.Created.UTC().Format("20060102T150405.000000000Z")
}
