package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams"
)

const (
	// sweepEvery is how often all is looked at, beside each change of a record.
	sweepEvery = time.Minute
	// recent is how long a revocation is looked at again in each round: a replica that had not heard of it may let one in.
	recent = 10 * time.Minute
	// lobbyStay is how long a link may be in the lobby. What it may do there takes a second.
	lobbyStay = 5 * time.Minute
)

// again are the times after a revocation when the cell is looked at once more: a link may be between the hub's question and its
// place, and a replica may hear of the revocation later.
func again() []time.Duration {
	return []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}
}

// Told hears what becomes of nodes. Its methods must not block.
type Told interface {
	// Cut says that a node may not be connected any more: what goes over its links should end.
	Cut(node, why string)
	// Revoked says that somebody has just revoked it, and that those of its links that this replica knows of are closed.
	Revoked(node string)
}

// Enforcer closes the links of who may not stay: each replica does, and twice is harmless.
type Enforcer struct {
	system  system
	policy  Policy
	records *Records
	links   *Links
	told    Told
	metrics *Metrics
	log     *zap.Logger

	mu sync.Mutex
	// nodes and cells to look at, and when; guarded by mu.
	nodes map[string]time.Time
	cells map[string][]time.Time
	// joined are cells that have newcomers, and when to look at them; guarded by mu.
	joined map[string]time.Time
	// strict says until when links of a node are closed that nobody knows; guarded by mu.
	strict map[string]time.Time
	// fresh are nodes that were just revoked and whose links are not all closed yet; guarded by mu.
	fresh map[string]bool

	nodesRing, cellsRing chan struct{} // each holds one: something was added

	lobby map[link]time.Time // since when; of watchCells alone
}

// NewEnforcer makes an Enforcer. sys belongs to the hub's system account. Tell it of changes with Changed and Admitted.
func NewEnforcer(sys *nats.Conn, policy Policy, told Told, metrics *Metrics, log *zap.Logger) *Enforcer {
	return &Enforcer{
		system: system{sys}, policy: policy, told: told, metrics: metrics, log: log,
		nodes: make(map[string]time.Time), cells: make(map[string][]time.Time), joined: make(map[string]time.Time),
		strict: make(map[string]time.Time), fresh: make(map[string]bool), nodesRing: make(chan struct{}, 1), cellsRing: make(chan struct{}, 1),
		lobby: make(map[link]time.Time),
	}
}

// Use says where the records and links are; once, before Start.
func (e *Enforcer) Use(records *Records, links *Links) { e.records, e.links = records, links }

// Changed is what Records calls.
func (e *Enforcer) Changed(was, is *Record) {
	switch {
	case is == nil:
		e.look(was.Node, 0)
		e.sweep(e.account(was.Node), again())
		return
	case was == nil: // it begins, or this replica does: links of before may be left
		if now := time.Now(); suspect(is, now) {
			if e.news(is, now) {
				e.shutting(is.Node)
			}
			e.look(is.Node, 0)
			e.sweep(e.account(is.Node), []time.Duration{0})
		}
		return
	}
	revoked := was.RevokedAt.IsZero() && !is.RevokedAt.IsZero()
	if revoked {
		e.shutting(is.Node)
	}
	e.look(is.Node, 0)
	if revoked || slices.ContainsFunc(is.Revoked, func(key string) bool { return !slices.Contains(was.Revoked, key) }) {
		e.sweep(e.account(is.Node), again())
	}
	if gone := func(key string) bool { return !slices.Contains(is.keys(), key) }; slices.ContainsFunc(was.keys(), gone) {
		e.outdated(is.Node)
	}
}

// news says that a record that is new here is of a revocation that nobody may have been told of: of a Node that had no record, or of
// one while this replica was about to begin.
func (e *Enforcer) news(is *Record, now time.Time) bool {
	if is.RevokedAt.IsZero() {
		return false
	}
	span := sweepEvery
	select {
	case <-e.records.Synced():
		span = recent
	default:
	}
	return now.Sub(is.RevokedAt) < span
}

// shutting notes that a node was just revoked.
func (e *Enforcer) shutting(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fresh[node] = true
}

// Closing says that a node was just revoked, and that not all of its links are closed.
func (e *Enforcer) Closing(node string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fresh[node]
}

// outdated asks for the links of a node to be closed that nobody knows: they may be of a key that another has replaced. Its own link is
// known: a gateway has none but that which it asked for its key by, or one that it made with the key.
func (e *Enforcer) outdated(node string) {
	now := time.Now()
	e.mu.Lock()
	maps.DeleteFunc(e.strict, func(_ string, until time.Time) bool { return now.After(until) })
	e.strict[node] = now.Add(strictFor)
	e.mu.Unlock()
	e.sweep(e.account(node), []time.Duration{recheck})
}

// isStrict says whether the links of a node are closed now that nobody knows.
func (e *Enforcer) isStrict(node string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Before(e.strict[node])
}

// suspect says that a link of the node may be one that must not stay.
func suspect(record *Record, now time.Time) bool {
	return record == nil || !record.RevokedAt.IsZero() || len(record.Revoked) > 0 || !now.Before(record.Expires)
}

// Admitted is what Links calls. A replica that has not heard of a revocation may have let somebody in who must not stay; one that
// has not heard of an enrolment yet is no judge, so only what is known to be revoked counts, and not before long: a link that is
// not in its place yet cannot be closed. The replica that let it in, here, sees what it says of itself to the hub.
func (e *Enforcer) Admitted(node string, here bool) {
	if here {
		e.expect(e.account(node))
	}
	now, record := time.Now(), e.records.Of(node)
	for _, h := range e.links.of(node) {
		if why := standing(record, h.Key, e.records.Revoked(h.Key), now); why == ReasonRevokedKey || why == ReasonRevokedNode {
			e.sweep(e.account(node), []time.Duration{recheck})
			return
		}
	}
}

// Why links are closed beside what a standing says.
const (
	reasonNobodyKnows Reason = "nobody-knows"
	reasonLobby       Reason = "lobby"
	reasonClaimsHub   Reason = "claims-hub"
)

const (
	// joinedAfter is how long after a link a cell is looked through: it is in its place then, and all that came meanwhile cost one look.
	joinedAfter = 5 * time.Second
	// recheck is longer than an informer usually lags.
	recheck = 2 * time.Second
	// kickAgain is how soon a link that could not be closed is tried again.
	kickAgain = time.Second
	// atOnce is how many nodes are judged, and links closed, at once: a server that does not answer costs kickTimeout.
	atOnce = 32
	// strictFor is more than a cell may wait for its turn to be looked through.
	strictFor = time.Minute
)

// account is the cell of a node.
func (e *Enforcer) account(node string) string { return streams.CellAccount(node, e.policy.Cells) }

// Start enforces until ctx ends, and then returns nil.
func (e *Enforcer) Start(ctx context.Context) error {
	sub, err := e.system.nc.Subscribe(closedSubject, func(msg *nats.Msg) { e.ended(msg.Data) })
	if err != nil {
		return fmt.Errorf("hear of links that end: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	select {
	case <-ctx.Done():
		return nil
	case <-e.records.Synced():
	}
	var g errgroup.Group
	g.Go(func() error { return e.watchNodes(ctx) })
	g.Go(func() error { return e.watchCells(ctx) })
	return g.Wait()
}

// ended forgets a link that is over, so that it is neither closed again nor in the way of one that stands.
func (e *Enforcer) ended(data []byte) {
	var c closed
	if err := json.Unmarshal(data, &c); err == nil && nameable(c.Client.Name) {
		e.links.forget(admission{Server: c.Server.ID, CID: c.Client.ID, Node: c.Client.Name})
	}
}

// watchNodes closes the links that are known to be of a node, which takes a round trip.
func (e *Enforcer) watchNodes(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	e.round(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.round(ctx)
		case <-e.nodesRing:
		case <-timer.C:
		}
		timer.Reset(e.serve(ctx))
	}
}

// serve judges the nodes that are due, many at once, and returns when the next one is.
func (e *Enforcer) serve(ctx context.Context) (wait time.Duration) {
	nodes, wait := e.take(time.Now())
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, node := range nodes {
		g.Go(func() error {
			e.serveNode(ctx, node)
			return nil
		})
	}
	_ = g.Wait() // none fails
	return wait
}

// serveNode judges a node, and tells of its revocation once its links are closed.
func (e *Enforcer) serveNode(ctx context.Context, node string) {
	revoked := e.Closing(node) // before it is judged: what it is judged by says so, too
	over := e.judgeNode(ctx, node, time.Now())
	switch {
	case !revoked:
	case !over:
		e.look(node, kickAgain)
	default:
		e.mu.Lock()
		delete(e.fresh, node)
		e.mu.Unlock()
		if record := e.records.Of(node); record != nil && !record.RevokedAt.IsZero() {
			e.told.Revoked(node)
		}
	}
}

// watchCells asks the hub's servers what links there are.
func (e *Enforcer) watchCells(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := e.judgeLobby(ctx, time.Now()); err != nil && ctx.Err() == nil {
				e.log.Warn("lobby not looked through, tried again in a minute", zap.Error(err))
			}
		case <-e.cellsRing:
		case <-timer.C:
		}
		account, wait := e.due(time.Now())
		if account == "" {
			timer.Reset(wait)
			continue
		}
		if err := e.judgeCell(ctx, account); err != nil && ctx.Err() == nil {
			e.log.Warn("cell not looked through, tried again", zap.String("account", account), zap.Error(err))
			e.sweep(account, []time.Duration{kickAgain})
		}
		timer.Reset(0)
	}
}

// round judges every known link by memory alone, and looks again at what was revoked or has expired lately.
func (e *Enforcer) round(ctx context.Context) {
	now, records := time.Now(), e.records.All()
	e.metrics.nodes(records, now)
	for _, record := range records {
		ago := now.Sub(record.Expires)
		if !record.RevokedAt.IsZero() && now.Sub(record.RevokedAt) < recent || 0 <= ago && ago < 2*sweepEvery {
			e.sweep(e.account(record.Node), []time.Duration{0})
		}
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, node := range e.links.nodes() {
		if ctx.Err() != nil {
			break
		}
		e.serve(ctx) // who was revoked meanwhile does not wait for the end of the round
		g.Go(func() error {
			e.judgeNode(ctx, node, now)
			return nil
		})
	}
	_ = g.Wait() // none fails
}
