package loadtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// ack is one acknowledged delivery, as received at the hub.
type ack struct {
	node     string
	sequence uint64
	at       time.Time
}

// ackBuffer bounds the acks that a scenario has not consumed yet: more than the largest scenario produces.
const ackBuffer = 1 << 16

// ackSubscription receives every ack of desired state that passes the hub.
type ackSubscription struct {
	sub     *nats.Subscription
	pending chan ack

	mu sync.Mutex
	// lost counts acks that did not fit into the buffer; guarded by mu.
	lost int
}

func subscribeAcks(nc *nats.Conn) (*ackSubscription, error) {
	a := &ackSubscription{pending: make(chan ack, ackBuffer)}
	var err error
	if a.sub, err = nc.Subscribe("$JS.ACK."+subject.DesiredStream+".>", a.onAck); err != nil {
		return nil, fmt.Errorf("hear acks: %w", err)
	}
	if err := nc.Flush(); err != nil {
		return nil, fmt.Errorf("hear acks: %w", err)
	}
	return a, nil
}

// onAck reads $JS.ACK.<stream>.<consumer>.<attempt>.<stream sequence>.<consumer sequence>.<time>.<pending>.
func (a *ackSubscription) onAck(msg *nats.Msg) {
	at := time.Now()
	tokens := strings.Split(msg.Subject, ".")
	if len(tokens) != 9 || len(msg.Data) > 0 && !strings.HasPrefix(string(msg.Data), "+ACK") {
		return // a nak or progress
	}
	node, err := wire.Unescape(tokens[3])
	if err != nil {
		return
	}
	sequence, err := strconv.ParseUint(tokens[5], 10, 64)
	if err != nil {
		return
	}
	select {
	case a.pending <- ack{node: node, sequence: sequence, at: at}:
	default:
		a.mu.Lock()
		a.lost++
		a.mu.Unlock()
	}
}

// dropPending discards the acks received so far.
func (a *ackSubscription) dropPending() {
	for {
		select {
		case <-a.pending:
		default:
			return
		}
	}
}

// nextAck waits for the next ack.
func (a *ackSubscription) nextAck(ctx context.Context) (ack, error) {
	a.mu.Lock()
	lost := a.lost
	a.mu.Unlock()
	if lost != 0 {
		return ack{}, fmt.Errorf("%d acks were not taken in time", lost)
	}
	select {
	case got := <-a.pending:
		return got, nil
	case <-ctx.Done():
		return ack{}, errors.Join(errors.New("wait for an ack"), ctx.Err())
	}
}

func (a *ackSubscription) close() error { return a.sub.Unsubscribe() }
