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
	VerbFence   = "fence"   // the instance in the payload is shut out for FenceFor
	VerbDied    = "died"    // the hub's server of the name in the payload is gone, and the consumers in its memory
)

// orderQueue holds orders that come while one is obeyed; more are dropped, as the cloud repeats them.
const orderQueue = 16

// orderPrefix is before the node in an order.
const orderPrefix = "call.node."

// orderSubject carries an order of the cloud to a node. No node may send on it.
func orderSubject(node, verb string) string { return orderPrefix + wire.Escape(node) + "." + verb }

// Order tells a node to do something. It is lossy and needs no answer: whoever gives an order sees in the node's beats
// whether it has come.
func Order(nc *nats.Conn, node, verb string, payload []byte) error {
	if err := nc.Publish(orderSubject(node, verb), payload); err != nil {
		return fmt.Errorf("order %s to %s: %w", verb, node, err)
	}
	return nil
}

// Orders hears on a node what the cloud tells it to do.
type Orders struct {
	node     string
	nc       *nats.Conn
	handlers map[string]func(payload []byte)
	log      *zap.Logger
}

// NewOrders makes the listener of a node; handlers maps a verb to who obeys it and must not block.
func NewOrders(node string, nc *nats.Conn, handlers map[string]func(payload []byte), log *zap.Logger) *Orders {
	return &Orders{node: node, nc: nc, handlers: handlers, log: log}
}

// Start listens until ctx ends and then returns nil.
func (o *Orders) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, orderQueue)
	obey := make(map[string]func([]byte), len(o.handlers))
	for verb, handle := range o.handlers {
		subject := orderSubject(o.node, verb)
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
			if handle := obey[msg.Subject]; handle != nil {
				handle(msg.Data)
			}
		}
	}
}
