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
	// sweepInterval is how often all is looked at, beside each change of a record.
	sweepInterval = time.Minute
	// recentRevocation is how long a revocation is looked at again in each round: a replica that had not heard of it may let one in.
	recentRevocation = 10 * time.Minute
	// lobbyTimeout is how long a link may be in the lobby. What it may do there takes a second.
	lobbyTimeout = 5 * time.Minute
)

// recheckDelays are the times after a revocation when the cell is looked at once more: a link may be between the hub's question and its
// place, and a replica may hear of the revocation later.
func recheckDelays() []time.Duration {
	return []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}
}

// Notifier hears what becomes of nodes. Its methods must not block.
type Notifier interface {
	// Cut says that a node may not be connected any more: what goes over its links should end.
	CloseStreams(node, why string)
	// Revoked says that somebody has just revoked it, and that those of its links that this replica knows of are closed.
	NodeRevoked(node string)
}

// Enforcer closes the links of who may not stay: each replica does, and twice is harmless.
type Enforcer struct {
	system   systemAccount
	policy   Policy
	records  *Records
	links    *Links
	notifier Notifier
	metrics  *Metrics
	log      *zap.Logger

	mu sync.Mutex
	// nodeSchedule and cells to look at, and when; guarded by mu.
	nodeSchedule map[string]time.Time
	cellSchedule map[string][]time.Time
	// newcomerCells are cells that have newcomers, and when to look at them; guarded by mu.
	newcomerCells map[string]time.Time
	// strictUntil says until when links of a node are closed that nobody knows; guarded by mu.
	strictUntil map[string]time.Time
	// pendingRevocations are nodes that were just revoked and whose links are not all closed yet; guarded by mu.
	pendingRevocations map[string]bool

	nodesChanged, cellsChanged chan struct{} // each holds one: something was added

	lobbySince map[linkID]time.Time // since when; of watchCells alone
}

// NewEnforcer makes an Enforcer. sys belongs to the hub's system account. Tell it of changes with Changed and Admitted.
func NewEnforcer(sys *nats.Conn, policy Policy, told Notifier, metrics *Metrics, log *zap.Logger) *Enforcer {
	return &Enforcer{
		system: systemAccount{sys}, policy: policy, notifier: told, metrics: metrics, log: log,
		nodeSchedule: make(map[string]time.Time), cellSchedule: make(map[string][]time.Time), newcomerCells: make(map[string]time.Time),
		strictUntil: make(map[string]time.Time), pendingRevocations: make(map[string]bool), nodesChanged: make(chan struct{}, 1), cellsChanged: make(chan struct{}, 1),
		lobbySince: make(map[linkID]time.Time),
	}
}

// SetSources says where the records and links are; once, before Start.
func (e *Enforcer) SetSources(records *Records, links *Links) { e.records, e.links = records, links }

// OnRecordChanged is what Records calls.
func (e *Enforcer) OnRecordChanged(was, is *Record) {
	switch {
	case is == nil:
		e.scheduleNode(was.Node, 0)
		e.scheduleCell(e.accountOf(was.Node), recheckDelays())
		return
	case was == nil: // it begins, or this replica does: links of before may be left
		if now := time.Now(); isSuspect(is, now) {
			if e.isNewRevocation(is, now) {
				e.markRevoked(is.Node)
			}
			e.scheduleNode(is.Node, 0)
			e.scheduleCell(e.accountOf(is.Node), []time.Duration{0})
		}
		return
	}
	revoked := was.RevokedAt.IsZero() && !is.RevokedAt.IsZero()
	if revoked {
		e.markRevoked(is.Node)
	}
	e.scheduleNode(is.Node, 0)
	if revoked || slices.ContainsFunc(is.Revoked, func(key string) bool { return !slices.Contains(was.Revoked, key) }) {
		e.scheduleCell(e.accountOf(is.Node), recheckDelays())
	}
	if gone := func(key string) bool { return !slices.Contains(is.validKeys(), key) }; slices.ContainsFunc(was.validKeys(), gone) {
		e.markStrict(is.Node)
	}
}

// isNewRevocation says that a record that is new here is of a revocation that nobody may have been told of: of a Node that had no record, or of
// one while this replica was about to begin.
func (e *Enforcer) isNewRevocation(is *Record, now time.Time) bool {
	if is.RevokedAt.IsZero() {
		return false
	}
	span := sweepInterval
	select {
	case <-e.records.Synced():
		span = recentRevocation
	default:
	}
	return now.Sub(is.RevokedAt) < span
}

// markRevoked notes that a node was just revoked.
func (e *Enforcer) markRevoked(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pendingRevocations[node] = true
}

// IsClosing says that a node was just revoked, and that not all of its links are closed.
func (e *Enforcer) IsClosing(node string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pendingRevocations[node]
}

// markStrict asks for the links of a node to be closed that nobody knows: they may be of a key that another has replaced. Its own link is
// known: a gateway has none but that which it asked for its key by, or one that it made with the key.
func (e *Enforcer) markStrict(node string) {
	now := time.Now()
	e.mu.Lock()
	maps.DeleteFunc(e.strictUntil, func(_ string, until time.Time) bool { return now.After(until) })
	e.strictUntil[node] = now.Add(strictPeriod)
	e.mu.Unlock()
	e.scheduleCell(e.accountOf(node), []time.Duration{recheckDelay})
}

// isStrict says whether the links of a node are closed now that nobody knows.
func (e *Enforcer) isStrict(node string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Before(e.strictUntil[node])
}

// isSuspect says that a link of the node may be one that must not stay.
func isSuspect(record *Record, now time.Time) bool {
	return record == nil || !record.RevokedAt.IsZero() || len(record.Revoked) > 0 || !now.Before(record.Expires)
}

// OnAdmitted is what Links calls. A replica that has not heard of a revocation may have let somebody in who must not stay; one that
// has not heard of an enrolment yet is no judge, so only what is known to be revoked counts, and not before long: a link that is
// not in its place yet cannot be closed. The replica that let it in, here, sees what it says of itself to the hub.
func (e *Enforcer) OnAdmitted(node string, here bool) {
	if here {
		e.scheduleNewcomers(e.accountOf(node))
	}
	now, record := time.Now(), e.records.Lookup(node)
	for _, h := range e.links.linksOf(node) {
		if why := keyStatus(record, h.Key, e.records.IsRevoked(h.Key), now); why == ReasonRevokedKey || why == ReasonRevokedNode {
			e.scheduleCell(e.accountOf(node), []time.Duration{recheckDelay})
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
	// newcomerDelay is how long after a link a cell is looked through: it is in its place then, and all that came meanwhile cost one look.
	newcomerDelay = 5 * time.Second
	// recheckDelay is longer than an informer usually lags.
	recheckDelay = 2 * time.Second
	// kickRetry is how soon a link that could not be closed is tried again.
	kickRetry = time.Second
	// maxParallel is how many nodes are judged, and links closed, at once: a server that does not answer costs kickTimeout.
	maxParallel = 32
	// strictPeriod is more than a cell may wait for its turn to be looked through.
	strictPeriod = time.Minute
)

// accountOf is the cell of a node.
func (e *Enforcer) accountOf(node string) string { return streams.CellAccount(node, e.policy.Cells) }

// Start enforces until ctx ends, and then returns nil.
func (e *Enforcer) Start(ctx context.Context) error {
	sub, err := e.system.nc.Subscribe(disconnectSubject, func(msg *nats.Msg) { e.forgetEnded(msg.Data) })
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

// forgetEnded forgets a link that is over, so that it is neither closed again nor in the way of one that stands.
func (e *Enforcer) forgetEnded(data []byte) {
	var c disconnectEvent
	if err := json.Unmarshal(data, &c); err == nil && isNodeName(c.Client.Name) {
		e.links.forgetLink(admission{Server: c.Server.ID, CID: c.Client.ID, Node: c.Client.Name})
	}
}

// watchNodes closes the links that are known to be of a node, which takes a round trip.
func (e *Enforcer) watchNodes(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	e.runRound(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.runRound(ctx)
		case <-e.nodesChanged:
		case <-timer.C:
		}
		timer.Reset(e.enforceDue(ctx))
	}
}

// enforceDue judges the nodes that are due, many at once, and returns when the next one is.
func (e *Enforcer) enforceDue(ctx context.Context) (wait time.Duration) {
	nodes, wait := e.dueNodes(time.Now())
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for _, node := range nodes {
		g.Go(func() error {
			e.enforceNode(ctx, node)
			return nil
		})
	}
	_ = g.Wait() // none fails
	return wait
}

// enforceNode judges a node, and tells of its revocation once its links are closed.
func (e *Enforcer) enforceNode(ctx context.Context, node string) {
	revoked := e.IsClosing(node) // before it is judged: what it is judged by says so, too
	over := e.evaluateNode(ctx, node, time.Now())
	switch {
	case !revoked:
	case !over:
		e.scheduleNode(node, kickRetry)
	default:
		e.mu.Lock()
		delete(e.pendingRevocations, node)
		e.mu.Unlock()
		if record := e.records.Lookup(node); record != nil && !record.RevokedAt.IsZero() {
			e.notifier.NodeRevoked(node)
		}
	}
}

// watchCells asks the hub's servers what links there are.
func (e *Enforcer) watchCells(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := e.evaluateLobby(ctx, time.Now()); err != nil && ctx.Err() == nil {
				e.log.Warn("lobby not looked through, tried again in a minute", zap.Error(err))
			}
		case <-e.cellsChanged:
		case <-timer.C:
		}
		account, wait := e.dueCell(time.Now())
		if account == "" {
			timer.Reset(wait)
			continue
		}
		if err := e.evaluateCell(ctx, account); err != nil && ctx.Err() == nil {
			e.log.Warn("cell not looked through, tried again", zap.String("account", account), zap.Error(err))
			e.scheduleCell(account, []time.Duration{kickRetry})
		}
		timer.Reset(0)
	}
}

// runRound judges every known link by memory alone, and looks again at what was revoked or has expired lately.
func (e *Enforcer) runRound(ctx context.Context) {
	now, records := time.Now(), e.records.All()
	e.metrics.countNodes(records, now)
	for _, record := range records {
		ago := now.Sub(record.Expires)
		if !record.RevokedAt.IsZero() && now.Sub(record.RevokedAt) < recentRevocation || 0 <= ago && ago < 2*sweepInterval {
			e.scheduleCell(e.accountOf(record.Node), []time.Duration{0})
		}
	}
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for _, node := range e.links.nodeNames() {
		if ctx.Err() != nil {
			break
		}
		e.enforceDue(ctx) // who was revoked meanwhile does not wait for the end of the round
		g.Go(func() error {
			e.evaluateNode(ctx, node, now)
			return nil
		})
	}
	_ = g.Wait() // none fails
}
