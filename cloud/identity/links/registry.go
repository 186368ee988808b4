package links

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

	"github.com/frond-edge/frond/cloud/identity"
)

const (
	// admittedSubject carries the announcements of admitted links to every replica.
	admittedSubject = "frond.identity.admitted"
	// linkQuerySubject carries queries about links to the other replicas; an empty list asks for all links.
	linkQuerySubject = "frond.identity.whose"
	// maxLinksPerNode is how many of a node's links are remembered. It has one; the others have ended, or are clones.
	maxLinksPerNode = 8
	// linksPerReply bounds a message: an admission has 500 bytes at most.
	linksPerReply = 1000
	// linkQueryWait is how long to wait for the other replicas' replies.
	linkQueryWait = time.Second
)

// linkID identifies a leaf connection of the hub. The pair is never reused.
type linkID struct {
	Server string `json:"server"`
	CID    uint64 `json:"cid"`
}

// Admission says that a link was admitted, and for which node. The hub itself does not know: its name for a leaf is the
// one that the leaf chose.
type Admission struct {
	Server string `json:"server"`
	CID    uint64 `json:"cid"`
	Node   string `json:"node"`
	Key    string `json:"key"`
	// Nonce is the text that the key has signed. Only the server and the two ends know it.
	Nonce string `json:"nonce,omitempty"`
	// Rekeys counts the keys that the link was transferred to; of two admissions of a link the one with more rekeys is newer.
	Rekeys int `json:"turn,omitempty"`
}

func (a Admission) linkID() linkID { return linkID{a.Server, a.CID} }

// Registry records which node each link belongs to. All replicas receive each admission; one that started later asks the
// others. A link that no replica knows was admitted before all of them started.
type Registry struct {
	nc         *nats.Conn
	onAdmitted OnAdmitted
	synced     chan struct{}
	log        *zap.Logger

	mu     sync.Mutex
	byNode map[string][]knownLink // guarded by mu; the newest last
}

// OnAdmitted is called for each admission, with whether this replica made it, and with the keys of all the node's known
// links. It must not block.
type OnAdmitted func(node string, here bool, keys []string)

// knownLink is an admission and when it was received; zero for one from before.
type knownLink struct {
	Admission
	heardAt time.Time
}

// NewRegistry creates an empty Registry. nc belongs to the account of the callout.
func NewRegistry(nc *nats.Conn, admitted OnAdmitted, log *zap.Logger) *Registry {
	return &Registry{nc: nc, onAdmitted: admitted, log: log, synced: make(chan struct{}), byNode: make(map[string][]knownLink)}
}

// Synced returns a channel that closes when the other replicas were asked for their links: they should not stop before that.
func (l *Registry) Synced() <-chan struct{} { return l.synced }

// Start receives admissions and answers queries until ctx ends, and then returns nil.
func (l *Registry) Start(ctx context.Context) error {
	heard, err := l.nc.Subscribe(admittedSubject, func(msg *nats.Msg) {
		var a Admission
		if err := json.Unmarshal(msg.Data, &a); err != nil || !identity.IsNodeName(a.Node) {
			l.log.Warn("admission not understood", zap.Error(err))
			return
		}
		l.recordLink(knownLink{a, time.Now()}, false)
	})
	if err != nil {
		return fmt.Errorf("hear of links: %w", err)
	}
	asked, err := l.nc.Subscribe(linkQuerySubject, l.answerQuery)
	if err != nil {
		return fmt.Errorf("tell of links: %w", err)
	}
	l.syncFromPeers(ctx)
	<-ctx.Done()
	_ = heard.Unsubscribe() // both fail only when the connection is gone
	_ = asked.Unsubscribe()
	return nil
}

// syncFromPeers asks the other replicas for all their links, once there is a connection.
func (l *Registry) syncFromPeers(ctx context.Context) {
	defer close(l.synced)
	connected := l.nc.StatusChanged(nats.CONNECTED)
	defer l.nc.RemoveStatusListener(connected)
	for !l.nc.IsConnected() {
		select {
		case <-ctx.Done():
			return
		case <-connected:
		}
	}
	// Registry that are not learned now are queried when they are needed.
	if _, err := l.queryPeers(ctx, []linkID{}); err != nil && ctx.Err() == nil {
		l.log.Warn("other replicas not asked for their links", zap.Error(err))
	}
}

// answerQuery answers the query of another replica.
func (l *Registry) answerQuery(msg *nats.Msg) {
	var links []linkID
	if err := json.Unmarshal(msg.Data, &links); err != nil {
		return
	}
	var told []Admission
	if len(links) == 0 {
		told = l.allLinks()
	}
	for _, h := range l.knownLinks(links) {
		told = append(told, h.Admission)
	}
	for some := range slices.Chunk(told, linksPerReply) {
		reply, err := json.Marshal(some)
		if err == nil {
			err = msg.Respond(reply)
		}
		if err != nil {
			l.log.Warn("replica not answered", zap.Error(err))
			return
		}
	}
}

// Announce announces an admission to all replicas, including this one.
func (l *Registry) Announce(a Admission) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.recordLink(knownLink{a, time.Now()}, true)
	return l.nc.Publish(admittedSubject, data)
}

func (l *Registry) recordLink(one knownLink, here bool) {
	if !l.storeLink(one) {
		return
	}
	var keys []string
	for _, h := range l.linksOf(one.Node) {
		keys = append(keys, h.Key)
	}
	l.onAdmitted(one.Node, here, keys)
}

// storeLink stores an admission and reports whether it was new.
func (l *Registry) storeLink(one knownLink) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	links := l.byNode[one.Node]
	if i := slices.IndexFunc(links, func(h knownLink) bool { return h.linkID() == one.linkID() }); i >= 0 {
		if one.Rekeys <= links[i].Rekeys {
			return false
		}
		links = slices.Delete(links, i, i+1)
	}
	links = append(links, one)
	slices.SortStableFunc(links, func(a, b knownLink) int { return a.heardAt.Compare(b.heardAt) })
	l.byNode[one.Node] = slices.Clip(links[max(0, len(links)-maxLinksPerNode):])
	return true
}

// Rekey transfers a link to another key of its node, whose signature of the link's nonce is given. It reports
// whether the link is recorded for that key now; an unknown link is not.
func (l *Registry) Rekey(node, key, nonce string, signature []byte) bool {
	if nonce == "" || !identity.VerifySignature(key, []byte(nonce), signature) {
		return false
	}
	for _, h := range l.linksOf(node) {
		if h.Nonce != nonce {
			continue
		}
		if h.Key == key {
			return true
		}
		carried := h.Admission
		carried.Key = key
		carried.Rekeys++
		if err := l.Announce(carried); err != nil {
			l.log.Warn("link not carried over to its node's next key", zap.String("node", node), zap.Error(err))
			return false
		}
		return true
	}
	return false
}

// allLinks returns every link.
func (l *Registry) allLinks() (every []Admission) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, some := range l.byNode {
		for _, h := range some {
			every = append(every, h.Admission)
		}
	}
	return every
}

// linksOf returns the links of a node.
func (l *Registry) linksOf(node string) []knownLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.byNode[node])
}

func (l *Registry) nodeNames() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.byNode))
}

// forgetLink removes a link that is gone.
func (l *Registry) forgetLink(a Admission) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rest := slices.DeleteFunc(l.byNode[a.Node], func(h knownLink) bool { return h.linkID() == a.linkID() }); len(rest) > 0 {
		l.byNode[a.Node] = rest
	} else {
		delete(l.byNode, a.Node)
	}
}

// knownLinks returns the admissions of these links that are in memory.
func (l *Registry) knownLinks(links []linkID) map[linkID]knownLink {
	wanted := make(map[linkID]bool, len(links))
	for _, one := range links {
		wanted[one] = true
	}
	found := make(map[linkID]knownLink)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, some := range l.byNode {
		for _, h := range some {
			if wanted[h.linkID()] {
				found[h.linkID()] = h
			}
		}
	}
	return found
}

// resolveLinks returns the admissions of these links, and asks the other replicas for those that are not in memory.
func (l *Registry) resolveLinks(ctx context.Context, links []linkID) (map[linkID]knownLink, error) {
	found := l.knownLinks(links)
	missing := slices.DeleteFunc(slices.Clone(links), func(one linkID) bool { _, there := found[one]; return there })
	if len(missing) == 0 {
		return found, nil
	}
	told, err := l.queryPeers(ctx, missing)
	if err != nil {
		return nil, err
	}
	for _, h := range told {
		found[h.linkID()] = h
	}
	return found, nil
}

// queryPeers asks the other replicas, and stores their answers.
func (l *Registry) queryPeers(ctx context.Context, links []linkID) ([]knownLink, error) {
	request, err := json.Marshal(links)
	if err != nil {
		return nil, err
	}
	replies, err := gatherReplies(ctx, l.nc, linkQuerySubject, request, linkQueryWait)
	if err != nil {
		return nil, err
	}
	var learned []knownLink
	for _, reply := range replies {
		var told []Admission
		if err := json.Unmarshal(reply, &told); err != nil {
			return nil, fmt.Errorf("a replica's links: %w", err)
		}
		for _, a := range told {
			if identity.IsNodeName(a.Node) {
				learned = append(learned, knownLink{Admission: a})
			}
		}
	}
	for _, h := range learned {
		l.recordLink(h, false)
	}
	return learned, nil
}

// gatherReplies sends a request and collects replies until none has arrived for wait.
func gatherReplies(ctx context.Context, nc *nats.Conn, subject string, request []byte, wait time.Duration) ([][]byte, error) {
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
		case err == nil: // there is no subscriber
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders):
			return replies, nil
		default:
			return nil, err
		}
	}
}
