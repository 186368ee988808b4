package streams

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// handsMost is how many reports one process has in hand at most; it asks for no more then.
	handsMost = 2048
	// handsPerNode is how many of them are one node's: more than all pods of a usual gateway.
	handsPerNode = 128
	// workersPerNode is how many workers serve one node at a time, so that a node whose reports take long leaves the others
	// free.
	workersPerNode = 4
	// handBeat keeps what is in hand from being given to another: three may be lost before reportAckWait is over.
	handBeat = 3 * time.Second
)

// hands holds the messages between a stream and its workers, and gives each node its turn.
type hands struct {
	mu    sync.Mutex
	work  *sync.Cond               // of mu; told when a message may be worked on
	room  *sync.Cond               // of mu; told when there is room for another
	ended bool                     // guarded by mu
	all   map[jetstream.Msg]string // guarded by mu; with the token of its node
	nodes map[string]*nodeHands    // guarded by mu
	ring  []string                 // guarded by mu; whose turn it is next
}

// nodeHands is what one node has in hand; guarded by hands.mu.
type nodeHands struct {
	waiting []jetstream.Msg
	running map[string]struct{} // subjects
}

func newHands() *hands {
	h := &hands{all: map[jetstream.Msg]string{}, nodes: map[string]*nodeHands{}}
	h.work, h.room = sync.NewCond(&h.mu), sync.NewCond(&h.mu)
	return h
}

// nodeToken is the second token of a subject.
func nodeToken(subject string) string {
	_, rest, _ := strings.Cut(subject, ".")
	token, _, _ := strings.Cut(rest, ".")
	return token
}

// end lets all that wait in put and next return.
func (h *hands) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.work.Broadcast()
	h.room.Broadcast()
}

// put takes a message in hand, or returns false if its node has enough there. It waits while the hands are full.
func (h *hands) put(msg jetstream.Msg) bool {
	token := nodeToken(msg.Subject())
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.all) >= handsMost && !h.ended {
		h.room.Wait()
	}
	n := h.nodes[token]
	if n == nil {
		n = &nodeHands{running: map[string]struct{}{}}
		h.nodes[token] = n
		h.ring = append(h.ring, token)
	}
	if len(n.waiting)+len(n.running) >= handsPerNode {
		return false
	}
	n.waiting = append(n.waiting, msg)
	h.all[msg] = token
	h.work.Signal()
	return true
}

// next waits for a message to work on: never two of one object at a time. done must be called with it. nil: it is over.
func (h *hands) next() jetstream.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.ended {
		for i, token := range h.ring {
			if msg := h.nodes[token].pick(); msg != nil {
				h.ring = append(slices.Delete(h.ring, i, i+1), token)
				return msg
			}
		}
		h.work.Wait()
	}
	return nil
}

// pick takes the oldest message whose object nobody works on. The caller holds hands.mu.
func (n *nodeHands) pick() jetstream.Msg {
	if len(n.running) >= workersPerNode {
		return nil
	}
	for i, msg := range n.waiting {
		if _, busy := n.running[msg.Subject()]; !busy {
			n.waiting = slices.Delete(n.waiting, i, i+1)
			n.running[msg.Subject()] = struct{}{}
			return msg
		}
	}
	return nil
}

// done forgets a message that next gave and that is about to be settled.
func (h *hands) done(msg jetstream.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	token := h.all[msg]
	delete(h.all, msg)
	n := h.nodes[token]
	delete(n.running, msg.Subject())
	if len(n.running) == 0 && len(n.waiting) == 0 {
		delete(h.nodes, token)
		h.ring = slices.DeleteFunc(h.ring, func(other string) bool { return other == token })
	}
	h.work.Signal()
	h.room.Signal()
}

// rest returns what is still in hand.
func (h *hands) rest() []jetstream.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.all))
}

// beat tells the stream from time to time that what is in hand is being worked on.
func (h *hands) beat(ctx context.Context) {
	ticker := time.NewTicker(handBeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, msg := range h.rest() {
			_ = msg.InProgress() // settled meanwhile, or the hub is away: then another cloudcore may have it
		}
	}
}
