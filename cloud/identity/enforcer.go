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

	"github.com/frond-edge/frond/streams/subject"
)

const (
	// sweepInterval is the interval between checks of all links, besides those after each change of a record.
	sweepInterval = time.Minute
	// recentRevocation is how long a revocation is checked again in each round: a replica that had not received it may
	// admit the node's link.
	recentRevocation = 10 * time.Minute
	// lobbyTimeout is how long a link may be in the lobby. The work that it may do there takes a second.
	lobbyTimeout = 5 * time.Minute
)

// recheckDelays returns the times after a revocation when the cell is checked once more: a link may have been admitted
// but not be registered yet, and a replica may receive the revocation later.
func recheckDelays() []time.Duration {
	return []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}
}

// Notifier is notified of changes of a node's identity. Its methods must not block.
type Notifier interface {
	// CloseStreams is called when a node may no longer be connected: the streams over its links should end.
	CloseStreams(node, why string)
	// NodeRevoked is called when a node was just revoked, and those of its links that this replica knows of are closed.
	NodeRevoked(node string)
}

// Enforcer closes the links that may not stay: each replica does, and twice is harmless.
type Enforcer struct {
	system   systemAccount
	policy   Policy
	records  *Records
	links    *Links
	notifier Notifier
	metrics  *Metrics
	log      *zap.Logger

	mu sync.Mutex
	// nodeSchedule and cellSchedule are the nodes and cells to check, and when; guarded by mu.
	nodeSchedule map[string]time.Time
	cellSchedule map[string][]time.Time
	// newcomerCells are cells that have newly admitted links, and when to check them; guarded by mu.
	newcomerCells map[string]time.Time
	// strictUntil is until when unknown links of a node are closed; guarded by mu.
	strictUntil map[string]time.Time
	// pendingRevocations are nodes that were just revoked and whose links are not all closed yet; guarded by mu.
	pendingRevocations map[string]bool

	nodesChanged, cellsChanged chan struct{} // each has a buffer of one: an entry was added

	lobbySince map[linkID]time.Time // since when; used by watchCells alone
}

// NewEnforcer creates an Enforcer. sys belongs to the hub's system account. Report changes to it with OnRecordChanged
// and OnAdmitted.
func NewEnforcer(sys *nats.Conn, policy Policy, told Notifier, metrics *Metrics, log *zap.Logger) *Enforcer {
	return &Enforcer{
		system: systemAccount{sys}, policy: policy, notifier: told, metrics: metrics, log: log,
		nodeSchedule: make(map[string]time.Time), cellSchedule: make(map[string][]time.Time), newcomerCells: make(map[string]time.Time),
		strictUntil: make(map[string]time.Time), pendingRevocations: make(map[string]bool), nodesChanged: make(chan struct{}, 1), cellsChanged: make(chan struct{}, 1),
		lobbySince: make(map[linkID]time.Time),
	}
}

// SetSources sets the records and links; call it once, before Start.
func (e *Enforcer) SetSources(records *Records, links *Links) { e.records, e.links = records, links }

// OnRecordChanged is the callback of Records.
func (e *Enforcer) OnRecordChanged(was, is *Record) {
	switch {
	case is == nil:
		e.scheduleNode(was.Node, 0)
		e.scheduleCell(e.accountOf(was.Node), recheckDelays())
		return
	case was == nil: // the node or this replica is new: older links may be left
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

// isNewRevocation reports whether a record that is new here is of a revocation that may not have been reported yet: of
// a Node that had no record, or of one while this replica was starting.
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

// markRevoked records that a node was just revoked.
func (e *Enforcer) markRevoked(node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pendingRevocations[node] = true
}

// IsClosing reports whether a node was just revoked and not all of its links are closed.
func (e *Enforcer) IsClosing(node string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pendingRevocations[node]
}

// markStrict requests that unknown links of a node are closed: they may belong to a key that another has replaced. The
// node's own link is known: a gateway has only the link on which it requested its key, or one that it made with the key.
func (e *Enforcer) markStrict(node string) {
	now := time.Now()
	e.mu.Lock()
	maps.DeleteFunc(e.strictUntil, func(_ string, until time.Time) bool { return now.After(until) })
	e.strictUntil[node] = now.Add(strictPeriod)
	e.mu.Unlock()
	e.scheduleCell(e.accountOf(node), []time.Duration{recheckDelay})
}

// isStrict reports whether unknown links of a node are closed now.
func (e *Enforcer) isStrict(node string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return now.Before(e.strictUntil[node])
}

// isSuspect reports whether a link of the node may be one that must not stay.
func isSuspect(record *Record, now time.Time) bool {
	return record == nil || !record.RevokedAt.IsZero() || len(record.Revoked) > 0 || !now.Before(record.Expires)
}

// OnAdmitted is the callback of Links. A replica that has not received a revocation may have admitted a link that must
// not stay. A replica that has not received an enrolment yet cannot decide about it. Therefore only a known revocation
// counts here, and only after a delay: a link that is not registered yet cannot be closed. The replica that admitted
// the link (here) checks what the link tells the hub about itself.
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

// The reasons for closing links, besides those of keyStatus.
const (
	reasonNobodyKnows Reason = "nobody-knows"
	reasonLobby       Reason = "lobby"
	reasonClaimsHub   Reason = "claims-hub"
)

const (
	// newcomerDelay is the delay between an admission and the check of its cell: by then the link is registered, and
	// all admissions in between cost one check.
	newcomerDelay = 5 * time.Second
	// recheckDelay is longer than an informer usually lags.
	recheckDelay = 2 * time.Second
	// kickRetry is how soon a link that could not be closed is tried again.
	kickRetry = time.Second
	// maxParallel is the number of nodes that are evaluated, and of links that are closed, concurrently: a server that
	// does not answer costs kickTimeout.
	maxParallel = 32
	// strictPeriod is longer than a cell may wait for its check.
	strictPeriod = time.Minute
)

// accountOf returns the cell of a node.
func (e *Enforcer) accountOf(node string) string { return subject.CellAccount(node, e.policy.Cells) }

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

// forgetEnded removes a link that has ended, so that it is not closed again and does not take the place of a live one.
func (e *Enforcer) forgetEnded(data []byte) {
	var c disconnectEvent
	if err := json.Unmarshal(data, &c); err == nil && isNodeName(c.Client.Name) {
		e.links.forgetLink(admission{Server: c.Server.ID, CID: c.Client.ID, Node: c.Client.Name})
	}
}

// watchNodes closes the known links of nodes, which takes a round trip.
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

// enforceDue evaluates the nodes that are due, concurrently, and returns the time until the next one is.
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

// enforceNode evaluates a node, and reports its revocation once its links are closed.
func (e *Enforcer) enforceNode(ctx context.Context, node string) {
	revoked := e.IsClosing(node) // read before the evaluation: the record that it uses then contains the revocation, too
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

// watchCells checks the links that the hub's servers list.
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

// runRound evaluates every known link from memory alone, and checks again what was revoked or has expired recently.
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
		e.enforceDue(ctx) // nodes that were revoked meanwhile do not wait for the end of the round
		g.Go(func() error {
			e.evaluateNode(ctx, node, now)
			return nil
		})
	}
	_ = g.Wait() // none fails
}
