package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams"
)

const (
	// closedSubject is where each server of the hub says of every link that it ended, and why.
	closedSubject = "$SYS.ACCOUNT.*.DISCONNECT"
	// closedGroup is the queue group of all cloudcores: one of them counts.
	closedGroup = "cloudcore"
)

// Offences counts the links that the hub closed by itself because of what came over them. The hub checks each subject, and asks
// nobody; its log has the subject, and cloudcore the node.
type Offences struct {
	nc     *nats.Conn
	policy Policy
	// told hears of a node's offence, once in a while; it must not block.
	told    func(node, what string)
	quiet   *quiet
	metrics *Metrics
	log     *zap.Logger
}

// NewOffences makes the counter. sys belongs to the hub's system account.
func NewOffences(sys *nats.Conn, policy Policy, told func(node, what string), metrics *Metrics, log *zap.Logger) *Offences {
	return &Offences{nc: sys, policy: policy, told: told, quiet: newQuiet(time.Now), metrics: metrics, log: log}
}

// Start counts until ctx ends, and then returns nil.
func (o *Offences) Start(ctx context.Context) error {
	sub, err := o.nc.QueueSubscribe(closedSubject, closedGroup, func(msg *nats.Msg) { o.hear(msg.Data) })
	if err != nil {
		return fmt.Errorf("hear of closed links: %w", err)
	}
	<-ctx.Done()
	_ = sub.Unsubscribe() // fails only when the connection is gone
	return nil
}

// closed is what the hub says of a link that ended.
type closed struct {
	Server struct {
		Name string `json:"name"`
		ID   string `json:"id"`
	} `json:"server"`
	Client struct {
		ID      uint64 `json:"id"`
		Host    string `json:"host"`
		Account string `json:"acc"`
		// Name is what the leaf calls itself. In a cell that is its node, or it would not be there.
		Name string `json:"name"`
	} `json:"client"`
	Reason string `json:"reason"`
}

func (o *Offences) hear(data []byte) {
	var c closed
	if err := json.Unmarshal(data, &c); err != nil {
		o.log.Warn("end of a link not understood", zap.Error(err))
		return
	}
	node, ours := o.whose(c.Client.Account, c.Client.Name)
	what := offence(c.Reason)
	if !ours || what == "" {
		return
	}
	o.metrics.offend(node, what)
	if !o.quiet.first(what + " " + node + " " + network(c.Client.Host)) {
		return
	}
	o.log.Warn("the hub closed a link for what came over it", zap.String("node", node), zap.String("reason", what), zap.String("hub", c.Reason),
		zap.String("remote", c.Client.Host), zap.String("server", c.Server.Name))
	if node != "" {
		o.told(node, what)
	}
}

// whose says which node a link was, "" for one of the lobby, and whether it was a gateway's at all.
func (o *Offences) whose(account, name string) (node string, ours bool) {
	switch {
	case account == streams.LobbyAccount:
		return "", true // the name is proven by nothing
	case nameable(name) && account == streams.CellAccount(name, o.policy.Cells):
		return name, true
	}
	return "", false
}

// offence is what a gateway has done when the hub gives this reason for the end of its link, as a label of metrics; "" for what may
// happen to anybody.
func offence(reason string) string {
	switch reason {
	case "Protocol Violation", "Parse Error":
		return "violation" // a subject that is not its own, or no leaf's protocol
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
