package call

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

// The verbs of the commands that the cloud sends on call.node.<node>.<verb>.
const (
	VerbResync  = "resync"  // attach for everything
	VerbReports = "reports" // report the Node and all pods again
	VerbWho     = "who"     // every agent of this name sends a heartbeat that repeats the payload
	VerbFence   = "fence"   // the instance named in the payload is fenced for FenceDuration
	VerbDied    = "died"    // the payload names a dead hub server (its memory consumers are lost) or cloudcore (its calls are lost)
	VerbReport  = "report"  // report the object whose key is the payload again
	VerbStops   = "stops"   // the hub server named in the payload stops as planned: a link to it that ends is dialled again at once
)

// anyVerb is the last token of the subject that matches all commands to a node.
const anyVerb = "*"

// commandQueue holds commands that arrive while one is executed; further ones are dropped, because the cloud repeats them.
const commandQueue = 256

const (
	// headerCloud marks the messages that a cloudcore sends to a node. Another node of the same cell can name this node's subjects as the
	// reply subject of a JetStream request; no reply has this header, nor has any stored message.
	headerCloud = "Frond-Cloud"
)

// SendCommand sends a command to a node. It is lossy and has no reply: the sender sees in the node's heartbeats whether the command
// arrived.
func SendCommand(nc *nats.Conn, node, verb string, payload []byte) error {
	if err := nc.PublishMsg(&nats.Msg{Subject: subject.CommandSubject(node, verb), Header: nats.Header{headerCloud: {"1"}}, Data: payload}); err != nil {
		return fmt.Errorf("order %s to %s: %w", verb, node, err)
	}
	return nil
}

// isAuthentic reports whether a command was sent by a cloudcore.
func isAuthentic(msg *nats.Msg, log *zap.Logger) bool {
	if msg.Header.Get(headerCloud) != "" {
		return true
	}
	log.Warn("order refused: no cloudcore has sent it", zap.String("subject", envelope.SanitizeText(msg.Subject)), zap.Int("bytes", len(msg.Data)))
	return false
}

// CommandListener receives the cloud's commands on a node, all with one subscription: each one costs the hub memory on every server.
type CommandListener struct {
	node     string
	nc       *nats.Conn
	handlers map[string]func(payload []byte)
	metrics  *metrics.Metrics
	log      *zap.Logger
}

// NewCommandListener returns the listener of a node; handlers maps each verb to its handler, which must not block.
func NewCommandListener(node string, nc *nats.Conn, handlers map[string]func(payload []byte), metrics *metrics.Metrics, log *zap.Logger) *CommandListener {
	return &CommandListener{node: node, nc: nc, handlers: handlers, metrics: metrics, log: log}
}

// Start listens until ctx ends and then returns nil.
func (o *CommandListener) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, commandQueue)
	all := subject.CommandSubject(o.node, anyVerb)
	sub, err := o.nc.ChanSubscribe(all, incoming)
	if err != nil {
		return fmt.Errorf("hear orders: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-incoming:
			o.executeCommand(strings.TrimPrefix(msg.Subject, strings.TrimSuffix(all, anyVerb)), msg)
		}
	}
}

// executeCommand calls the handler of a verb. A refused message loses nothing, and the hub's dead letters are unreachable without the
// link, so it is counted and logged.
func (o *CommandListener) executeCommand(verb string, msg *nats.Msg) {
	if !isAuthentic(msg, o.log) {
		o.metrics.DeadLetters.WithLabelValues(string(planeCall)).Inc()
		return
	}
	handle := o.handlers[verb]
	if handle == nil { // of a newer cloudcore
		o.log.Info("order not known to this version", zap.String("verb", envelope.SanitizeText(verb)))
		return
	}
	o.log.Debug("order", zap.String("verb", verb))
	handle(msg.Data)
}
