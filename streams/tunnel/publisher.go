package tunnel

import (
	"sync"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// maxLateFrames limits the frames that wait for the loop, because the dispatcher must not block. Further frames are dropped, and the
// peer detects it by its PeerTimeout.
const maxLateFrames = 1024

// framePublisher passes frames to NATS: at once for writers, through a queue for callers that must not block.
type framePublisher struct {
	nc      *nats.Conn
	log     *zap.Logger
	buffers sync.Pool
	late    chan lateFrame
}

// lateFrame is a frame that the loop sends for the dispatcher.
type lateFrame struct {
	subject string
	frame   protocol.Frame
}

func newFramePublisher(nc *nats.Conn, log *zap.Logger) *framePublisher {
	return &framePublisher{
		nc: nc, log: log,
		buffers: sync.Pool{New: func() any { b := make([]byte, 0, protocol.HeaderSize+protocol.MaxPayload); return &b }},
		late:    make(chan lateFrame, maxLateFrames),
	}
}

// PublishFrame passes a frame to NATS.
func (p *framePublisher) PublishFrame(subject, reply string, f protocol.Frame) error {
	buf := p.buffers.Get().(*[]byte)
	defer p.buffers.Put(buf)
	*buf = f.AppendTo((*buf)[:0])
	if reply == "" {
		return p.nc.Publish(subject, *buf)
	}
	return p.nc.PublishRequest(subject, reply, *buf)
}

// queueFrame queues a frame for the loop to send; it never blocks.
func (p *framePublisher) queueFrame(subject string, f protocol.Frame) {
	select {
	case p.late <- lateFrame{subject: subject, frame: f}:
	default:
	}
}

// sendQueuedFrames sends the queued frames. The caller is the only one that takes frames from the queue.
func (p *framePublisher) sendQueuedFrames() {
	for len(p.late) > 0 {
		p.sendLate(<-p.late)
	}
}

func (p *framePublisher) sendLate(l lateFrame) {
	if err := p.PublishFrame(l.subject, "", l.frame); err != nil {
		p.log.Debug("frame not sent", zap.Error(err))
	}
}
