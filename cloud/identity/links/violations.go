package links

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/cloud/identity/throttle"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// disconnectSubject is where each server of the hub reports every link that ended, and why.
	disconnectSubject = "$SYS.ACCOUNT.*.DISCONNECT"
	// disconnectGroup is the queue group of all cloudcores: one of them counts each report.
	disconnectGroup = "cloudcore"
)

// ViolationCounter counts the links that the hub closed because of the data sent over them. The hub checks
// each subject without asking cloudcore; the hub's log has the subject, and cloudcore's the node.
type ViolationCounter struct {
	nc     *nats.Conn
	policy identity.Policy
	// notify is called with a node's violation, once per span; it must not block.
	notify   func(node, what string)
	logDedup *throttle.LogDedup
	metrics  *Metrics
	log      *zap.Logger
}

// NewViolationCounter creates the counter. sys belongs to the hub's system account; notify must not block.
func NewViolationCounter(sys *nats.Conn, policy identity.Policy, notify func(node, what string), metrics *Metrics, log *zap.Logger) *ViolationCounter {
	return &ViolationCounter{nc: sys, policy: policy, notify: notify, logDedup: throttle.NewLogDedup(time.Now), metrics: metrics, log: log}
}

// Start counts until ctx ends, and then returns nil.
func (o *ViolationCounter) Start(ctx context.Context) error {
	sub, err := o.nc.QueueSubscribe(disconnectSubject, disconnectGroup, func(msg *nats.Msg) { o.recordDisconnect(msg.Data) })
	if err != nil {
		return fmt.Errorf("hear of closed links: %w", err)
	}
	<-ctx.Done()
	_ = sub.Unsubscribe() // fails only when the connection is gone
	return nil
}

// disconnectEvent is the hub's report of a link that ended.
type disconnectEvent struct {
	Server struct {
		Name string `json:"name"`
		ID   string `json:"id"`
	} `json:"server"`
	Client struct {
		ID      uint64 `json:"id"`
		Host    string `json:"host"`
		Account string `json:"acc"`
		// Name is the name that the leaf has chosen. In a cell that is its node, as it would not be admitted otherwise.
		Name string `json:"name"`
	} `json:"client"`
	Reason string `json:"reason"`
}

func (o *ViolationCounter) recordDisconnect(data []byte) {
	var c disconnectEvent
	if err := json.Unmarshal(data, &c); err != nil {
		o.log.Warn("end of a link not understood", zap.Error(err))
		return
	}
	node, ours := o.nodeOf(c.Client.Account, c.Client.Name)
	what := classifyDisconnect(c.Reason)
	if !ours || what == "" {
		return
	}
	o.metrics.countViolation(node, what)
	if !o.logDedup.IsFirst(what + " " + node + " " + throttle.NetworkOf(c.Client.Host)) {
		return
	}
	o.log.Warn("the hub closed a link for what came over it", zap.String("node", node), zap.String("reason", what), zap.String("hub", c.Reason),
		zap.String("remote", c.Client.Host), zap.String("server", c.Server.Name))
	if node != "" {
		o.notify(node, what)
	}
}

// nodeOf returns the node of a link, "" for one of the lobby, and whether it was a gateway's at all.
func (o *ViolationCounter) nodeOf(account, name string) (node string, ours bool) {
	switch {
	case account == subject.LobbyAccount:
		return "", true // the name is unverified
	case identity.IsNodeName(name) && account == subject.CellAccount(name, o.policy.Cells):
		return name, true
	}
	return "", false
}

// classifyDisconnect returns the kind of violation for the hub's reason for closing a link, as a label of metrics; ""
// for reasons without a violation.
func classifyDisconnect(reason string) string {
	switch reason {
	case "Protocol Violation", "Parse Error":
		return "violation" // a subject that is not its own, or no leaf protocol
	case "Maximum Message Payload Exceeded":
		return "too-large"
	case "Maximum Control Line Exceeded":
		return "long-line"
	case "Message Header Violation":
		return "header"
	case "Maximum Subscriptions Exceeded":
		return "subscriptions"
	case "Cluster Names Identical", "Incorrect Port", "Wrong Gateway":
		return "posing" // as a server of the hub
	}
	return ""
}
