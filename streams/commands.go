package streams

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// The orders that the cloud gives on call.node.<node>.<verb>.
const (
	VerbResync  = "resync"  // attach for everything
	VerbReports = "reports" // report the Node and all pods again
	VerbWho     = "who"     // every agent of this name sends a heartbeat with the payload in it
	VerbFence   = "fence"   // the instance in the payload is shut out for FenceDuration
	VerbDied    = "died"    // the hub's server of the name in the payload is gone, and the consumers in its memory; or that cloudcore, and what it was asked
)

// commandQueue holds orders that come while one is obeyed; more are dropped, as the cloud repeats them.
const commandQueue = 16

const (
	// commandPrefix is before the node in an order.
	commandPrefix = "call.node."
	// headerCloud marks what a cloudcore tells a node. Another node of the same cell can name this node's subjects as where
	// JetStream shall answer it; no answer has this header, nor has anything that is stored.
	headerCloud = "Frond-Cloud"
)

// commandSubject carries an order of the cloud to a node. No node may send on it.
func commandSubject(node, verb string) string { return commandPrefix + wire.Escape(node) + "." + verb }

// SendCommand tells a node to do something. It is lossy and needs no answer: whoever gives an order sees in the node's beats
// whether it has come.
func SendCommand(nc *nats.Conn, node, verb string, payload []byte) error {
	if err := nc.PublishMsg(&nats.Msg{Subject: commandSubject(node, verb), Header: nats.Header{headerCloud: {"1"}}, Data: payload}); err != nil {
		return fmt.Errorf("order %s to %s: %w", verb, node, err)
	}
	return nil
}

// isAuthentic tells whether a cloudcore has sent an order.
func isAuthentic(msg *nats.Msg, log *zap.Logger) bool {
	if msg.Header.Get(headerCloud) != "" {
		return true
	}
	log.Warn("order refused: no cloudcore has sent it", zap.String("subject", sanitizeText(msg.Subject)), zap.Int("bytes", len(msg.Data)))
	return false
}

// CommandListener hears on a node what the cloud tells it to do.
type CommandListener struct {
	node     string
	nc       *nats.Conn
	handlers map[string]func(payload []byte)
	log      *zap.Logger
}

// NewCommandListener makes the listener of a node; handlers maps a verb to who obeys it and must not block.
func NewCommandListener(node string, nc *nats.Conn, handlers map[string]func(payload []byte), log *zap.Logger) *CommandListener {
	return &CommandListener{node: node, nc: nc, handlers: handlers, log: log}
}

// Start listens until ctx ends and then returns nil.
func (o *CommandListener) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, commandQueue)
	obey := make(map[string]func([]byte), len(o.handlers))
	for verb, handle := range o.handlers {
		subject := commandSubject(o.node, verb)
		sub, err := o.nc.ChanSubscribe(subject, incoming)
		if err != nil {
			return fmt.Errorf("hear orders: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
		obey[subject] = handle
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-incoming:
			o.log.Debug("order", zap.String("subject", msg.Subject))
			if handle := obey[msg.Subject]; handle != nil && isAuthentic(msg, o.log) {
				handle(msg.Data)
			}
		}
	}
}
