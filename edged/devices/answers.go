package devices

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/broker/external"
)

const (
	// maxAnswers and maxAnswerBytes bound what waits to be sent to the external broker.
	maxAnswers     = 1024
	maxAnswerBytes = 4 << 20
)

var errAnswersFull = errors.New("the external MQTT broker takes answers more slowly than they come")

// answers sends to the external broker, in order, without holding up the devices: a connection that is lost without a sign is noticed only after a
// while. Create it with newAnswers and call start once.
type answers struct {
	send func(ctx context.Context, topic string, payload []byte) error
	// lost is called for each answer that is not sent.
	lost func()
	log  *zap.Logger
	// queue has room for maxAnswers.
	queue chan broker.Message

	mu    sync.Mutex
	bytes int // guarded by mu; of the answers in queue, and of the one that is being sent
}

func newAnswers(send func(ctx context.Context, topic string, payload []byte) error, lost func(), log *zap.Logger) *answers {
	return &answers{send: send, lost: lost, log: log, queue: make(chan broker.Message, maxAnswers)}
}

// enqueue takes an answer, or returns an error if too much waits. It does not block.
func (a *answers) enqueue(m broker.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := len(m.Topic) + len(m.Payload)
	if a.bytes+size <= maxAnswerBytes {
		select {
		case a.queue <- m:
			a.bytes += size
			return nil
		default:
		}
	}
	a.lost()
	return errAnswersFull
}

// start sends answers until ctx ends. Those that wait then are lost.
func (a *answers) start(ctx context.Context) {
	for {
		select {
		case m := <-a.queue:
			a.deliver(ctx, m)
		case <-ctx.Done():
			return
		}
	}
}

func (a *answers) deliver(ctx context.Context, m broker.Message) {
	sctx, cancel := context.WithTimeout(ctx, publishTimeout)
	err := a.send(sctx, m.Topic, m.Payload)
	cancel()
	a.mu.Lock()
	a.bytes -= len(m.Topic) + len(m.Payload)
	a.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		return
	}
	a.lost()
	if !errors.Is(err, external.ErrNotConnected) { // that is logged once
		a.log.Warn("an answer to an app is lost", zap.Error(err))
	}
}
