package outbox

import (
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

// ResendLastPart returns the offset at which an upload continues over a new link.
func ResendLastPart(have, last, size int) int {
	sent := map[string]uploadProgress{"": {sent: have, last: last, size: size}}
	resendLastParts(sent)
	return sent[""].sent
}

// QueuedUploads returns how many large reports are queued while no upload proceeds, after the given number of states of one object.
func QueuedUploads(states int) int {
	var queue []*chunkedReport
	var last *chunkedReport
	for range states {
		if last != nil {
			last.replaced.Store(true)
		}
		last = &chunkedReport{}
		queue = updateUploadQueue(queue, last)
	}
	return len(queue)
}

// NewSlowTimeoutPump is NewPump with a pump that waits for an hour for the hub's answers.
func NewSlowTimeoutPump(plane subject.Plane, nc *nats.Conn, link link.Link, metrics *metrics.Metrics, log *zap.Logger) (*Pump, error) {
	return newPump(plane, nc, nc, link, time.Hour, metrics, log)
}
