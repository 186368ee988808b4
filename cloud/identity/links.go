package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	// admittedSubject tells every replica whose link one has let in; whoseSubject asks them about links.
	admittedSubject = "frond.identity.admitted"
	whoseSubject    = "frond.identity.whose"
	// linksPerNode is how many of a node's links are remembered. It has one; the others are gone, or clones.
	linksPerNode = 8
	// whoseWait is how long the other replicas are waited for.
	whoseWait = 300 * time.Millisecond
)

// link is one leaf connection of the hub. Both together never come again.
type link struct {
	Server string `json:"server"`
	CID    uint64 `json:"cid"`
}

// admission says that a link was let in, and as whom. The hub itself does not tell: what it calls a leaf is what the leaf
// calls itself.
type admission struct {
	Server string `json:"server"`
	CID    uint64 `json:"cid"`
	Node   string `json:"node"`
	Key    string `json:"key"`
}

func (a admission) link() link { return link{a.Server, a.CID} }

// Links remembers whose the links are. All replicas hear of each admission; one that began later asks the others. What nobody
// knows was let in before all of them.
type Links struct {
	nc *nats.Conn
	// admitted hears of each admission, by whomever; it must not block.
	admitted func(node string)
	log      *zap.Logger

	mu     sync.Mutex
	byNode map[string][]held // guarded by mu; the newest last
}

// held is an admission and when it was heard of.
type held struct {
	admission
	at time.Time
}

// NewLinks makes the memory. nc belongs to the account of the callout.
func NewLinks(nc *nats.Conn, admitted func(node string), log *zap.Logger) *Links {
	return &Links{nc: nc, admitted: admitted, log: log, byNode: make(map[string][]held)}
}

// Start listens until ctx ends, and then returns nil.
func (l *Links) Start(ctx context.Context) error {
	heard, err := l.nc.Subscribe(admittedSubject, func(msg *nats.Msg) {
		var a admission
		if err := json.Unmarshal(msg.Data, &a); err != nil || !nameable(a.Node) {
			l.log.Warn("admission not understood", zap.Error(err))
			return
		}
		l.note(a)
	})
	if err != nil {
		return fmt.Errorf("hear of links: %w", err)
	}
	asked, err := l.nc.Subscribe(whoseSubject, func(msg *nats.Msg) {
		var links []link
		if err := json.Unmarshal(msg.Data, &links); err != nil {
			return
		}
		told := make([]admission, 0, len(links))
		for _, h := range l.known(links) {
			told = append(told, h.admission)
		}
		reply, err := json.Marshal(told)
		if err == nil {
			err = msg.Respond(reply)
		}
		if err != nil {
			l.log.Warn("replica not answered", zap.Error(err))
		}
	})
	if err != nil {
		return fmt.Errorf("tell of links: %w", err)
	}
	<-ctx.Done()
	_ = heard.Unsubscribe() // both fail only when the connection is gone
	_ = asked.Unsubscribe()
	return nil
}

// announce tells all replicas, this one too.
func (l *Links) announce(a admission) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.note(a)
	return l.nc.Publish(admittedSubject, data)
}

func (l *Links) note(a admission) {
	l.mu.Lock()
	known := slices.ContainsFunc(l.byNode[a.Node], func(h held) bool { return h.admission == a })
	if !known {
		links := append(l.byNode[a.Node], held{a, time.Now()})
		l.byNode[a.Node] = slices.Clip(links[max(0, len(links)-linksPerNode):])
	}
	l.mu.Unlock()
	if !known {
		l.admitted(a.Node)
	}
}

// of returns the links of a node, and nodes all nodes that have some.
func (l *Links) of(node string) []held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.byNode[node])
}

func (l *Links) nodes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.byNode))
}

// forget removes a link that is gone.
func (l *Links) forget(a admission) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rest := slices.DeleteFunc(l.byNode[a.Node], func(h held) bool { return h.admission == a }); len(rest) > 0 {
		l.byNode[a.Node] = rest
	} else {
		delete(l.byNode, a.Node)
	}
}

// known says whose some of these links are, from memory.
func (l *Links) known(links []link) map[link]held {
	wanted := make(map[link]bool, len(links))
	for _, one := range links {
		wanted[one] = true
	}
	found := make(map[link]held)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, some := range l.byNode {
		for _, h := range some {
			if wanted[h.link()] {
				found[h.link()] = h
			}
		}
	}
	return found
}

// whose says it, and asks the other replicas about what is not in memory.
func (l *Links) whose(ctx context.Context, links []link) (map[link]held, error) {
	found := l.known(links)
	missing := slices.DeleteFunc(slices.Clone(links), func(one link) bool { _, there := found[one]; return there })
	if len(missing) == 0 {
		return found, nil
	}
	request, err := json.Marshal(missing)
	if err != nil {
		return nil, err
	}
	replies, err := gather(ctx, l.nc, whoseSubject, request, whoseWait)
	if err != nil {
		return nil, err
	}
	for _, reply := range replies {
		var told []admission
		if err := json.Unmarshal(reply, &told); err != nil {
			return nil, fmt.Errorf("a replica's links: %w", err)
		}
		for _, a := range told {
			if slices.Contains(missing, a.link()) {
				found[a.link()] = held{a, time.Time{}}
			}
		}
	}
	return found, nil
}

// gather asks and takes answers until none has come for wait.
func gather(ctx context.Context, nc *nats.Conn, subject string, request []byte, wait time.Duration) ([][]byte, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := nc.PublishRequest(subject, inbox, request); err != nil {
		return nil, err
	}
	var replies [][]byte
	for {
		wctx, cancel := context.WithTimeout(ctx, wait)
		msg, err := sub.NextMsgWithContext(wctx)
		cancel()
		switch {
		case err == nil && len(msg.Data) > 0:
			replies = append(replies, msg.Data)
		case err == nil: // nobody listens
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders):
			return replies, nil
		default:
			return nil, err
		}
	}
}
