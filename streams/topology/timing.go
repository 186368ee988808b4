package topology

import "time"

const (
	// PublishTimeout bounds one publish, its retries included: longer than the election of a stream leader (4 to 9 s).
	PublishTimeout = 15 * time.Second
	// StepTimeout bounds each other step of an attach, retries included. A hub without a leader does not answer later either, so the
	// node should ask again rather than wait.
	StepTimeout = 2500 * time.Millisecond
	// PumpTimeout is how long a report waits for the hub's ack before it is sent again: longer than a leader election.
	PumpTimeout = 12 * time.Second
	// PumpWindow is the number of reports in flight to the hub; at 2 KB each that is half a second of a 1 Mbit/s link.
	PumpWindow = 32
	// PullHeartbeat finds a consumer that died with its server, after two missing heartbeats. Each is some 100 bytes, so 3 s cost an
	// idle link 3 MB a day.
	PullHeartbeat = 3 * time.Second
	// PullExpiry is how long one pull stays open.
	PullExpiry = 30 * time.Second
)
