package identity

import (
	"context"
	"errors"
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
	// Revoked says that somebody has just revoked it.
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
	// nodes to look at, and cells to look at when; guarded by mu.
	nodes map[string]bool
	cells map[string][]time.Time
	// joined are cells that have newcomers, and when to look at them; guarded by mu.
	joined map[string]time.Time
	// strict says until when links of a node are closed that nobody knows; guarded by mu.
	strict map[string]time.Time
	// fresh are nodes that were just revoked; guarded by mu.
	fresh map[string]bool

	nodesRing, cellsRing chan struct{} // each holds one: something was added

	lobby map[link]time.Time // since when; of watchCells alone
}

// NewEnforcer makes an Enforcer. sys belongs to the hub's system account. Tell it of changes with Changed and Admitted.
func NewEnforcer(sys *nats.Conn, policy Policy, told Told, metrics *Metrics, log *zap.Logger) *Enforcer {
	return &Enforcer{
		system: system{sys}, policy: policy, told: told, metrics: metrics, log: log,
		nodes: make(map[string]bool), cells: make(map[string][]time.Time), joined: make(map[string]time.Time),
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
		e.look(was.Node)
		e.sweep(e.account(was.Node), again())
		return
	case was == nil: // it begins, or this replica does: links of before may be left
		if suspect(is, time.Now()) {
			e.look(is.Node)
			e.sweep(e.account(is.Node), []time.Duration{0})
		}
		return
	}
	revoked := was.RevokedAt.IsZero() && !is.RevokedAt.IsZero()
	if revoked {
		e.mu.Lock()
		e.fresh[is.Node] = true
		e.mu.Unlock()
	}
	e.look(is.Node)
	if revoked || slices.ContainsFunc(is.Revoked, func(key string) bool { return !slices.Contains(was.Revoked, key) }) {
		e.sweep(e.account(is.Node), again())
	}
	if gone := func(key string) bool { return !slices.Contains(is.keys(), key) }; slices.ContainsFunc(was.keys(), gone) {
		e.outdated(is.Node)
	}
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
	// strictFor is more than a cell may wait for its turn to be looked through.
	strictFor = time.Minute
)

// account is the cell of a node.
func (e *Enforcer) account(node string) string { return streams.CellAccount(node, e.policy.Cells) }

// Start enforces until ctx ends, and then returns nil.
func (e *Enforcer) Start(ctx context.Context) error {
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

// watchNodes closes the links that are known to be of a node, which takes a round trip.
func (e *Enforcer) watchNodes(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	e.round(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.round(ctx)
		case <-e.nodesRing:
		}
		for node, revoked := range e.take() {
			if e.judgeNode(ctx, node); revoked { // its known links are closed now
				e.told.Revoked(node)
			}
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
			e.sweep(account, []time.Duration{time.Second})
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
	for _, node := range e.links.nodes() {
		if ctx.Err() != nil {
			return
		}
		e.judgeNode(ctx, node)
	}
}

// judgeNode closes those known links of a node whose key is not the node any more.
func (e *Enforcer) judgeNode(ctx context.Context, node string) {
	now := time.Now()
	for _, h := range e.links.of(node) {
		e.judge(ctx, h, now)
	}
	record := e.records.Of(node)
	if why := standing(record, keyOf(record), e.records.Revoked(keyOf(record)), now); why != "" {
		e.told.Cut(node, "its identity is not valid: "+string(why))
	}
}

func keyOf(record *Record) string {
	if record == nil {
		return ""
	}
	return record.Key
}

// judge closes a link whose key is not its node. A record that may not have reached this replica yet is waited for.
func (e *Enforcer) judge(ctx context.Context, h held, now time.Time) {
	why := standing(e.records.Of(h.Node), h.Key, e.records.Revoked(h.Key), now)
	switch {
	case why == "":
	case (why == ReasonUnknown || why == ReasonOtherKey) && now.Sub(h.at) < recheck:
		e.sweep(e.account(h.Node), []time.Duration{recheck})
	default:
		e.close(ctx, h.admission, e.account(h.Node), why)
	}
}

// close closes a link and forgets it.
func (e *Enforcer) close(ctx context.Context, a admission, account string, why Reason) {
	there, err := e.system.kick(ctx, a.link())
	switch {
	case errors.Is(err, nats.ErrNoResponders): // the server is gone, and the link with it
	case err != nil:
		e.log.Warn("link not closed, tried again", zap.String("node", a.Node), zap.String("key", a.Key), zap.Error(err))
		e.sweep(account, []time.Duration{time.Second})
		return
	case there:
		e.metrics.kick(why)
		e.log.Info("link closed", zap.String("node", a.Node), zap.String("key", a.Key), zap.String("reason", string(why)))
	}
	e.links.forget(a)
}

// judgeCell lists the links of an account and closes those whose holder may not be there. Of links that nobody knows, let in before
// any replica of today began, it closes those of nodes that are suspect: who may come in is back within seconds. No leaf gets in
// under another name than its node's.
func (e *Enforcer) judgeCell(ctx context.Context, account string) error {
	links, err := e.system.leafs(ctx, account)
	if err != nil || len(links) == 0 {
		return err
	}
	whose, err := e.links.whose(ctx, slices.Collect(maps.Keys(links)))
	if err != nil {
		return err
	}
	now := time.Now()
	for one, leaf := range links {
		h, known := whose[one]
		switch {
		case leaf.Hub:
			e.close(ctx, admission{Server: one.Server, CID: one.CID, Node: leaf.Name, Key: h.Key}, account, reasonClaimsHub)
		case known:
			e.judge(ctx, h, now)
		case suspect(e.records.Of(leaf.Name), now) || e.isStrict(leaf.Name, now):
			e.close(ctx, admission{Server: one.Server, CID: one.CID, Node: leaf.Name}, account, reasonNobodyKnows)
		}
	}
	return nil
}

// judgeLobby closes links that have been in the lobby for long.
func (e *Enforcer) judgeLobby(ctx context.Context, now time.Time) error {
	links, err := e.system.leafs(ctx, streams.LobbyAccount)
	if err != nil {
		return err
	}
	since := make(map[link]time.Time, len(links))
	for one, leaf := range links {
		if leaf.Hub {
			e.close(ctx, admission{Server: one.Server, CID: one.CID}, streams.LobbyAccount, reasonClaimsHub)
			continue
		}
		begun, there := e.lobby[one]
		if !there {
			begun = now
		}
		if since[one] = begun; now.Sub(begun) >= lobbyStay {
			e.close(ctx, admission{Server: one.Server, CID: one.CID}, streams.LobbyAccount, reasonLobby)
		}
	}
	e.lobby = since
	return nil
}
