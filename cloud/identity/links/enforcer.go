package links

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/identity"
)

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
	records  Records
	links    *Registry
	schedule *Schedule
	notifier Notifier
	metrics  *Metrics
	log      *zap.Logger

	lobbySince map[linkID]time.Time // since when; used by watchCells alone
}

// NewEnforcer creates an Enforcer. sys belongs to the hub's system account; schedule is the Enforcer's own, to which
// changes of the records and admissions are reported.
func NewEnforcer(sys *nats.Conn, records Records, links *Registry, schedule *Schedule, notifier Notifier, metrics *Metrics, log *zap.Logger) *Enforcer {
	return &Enforcer{
		system: systemAccount{sys}, records: records, links: links, schedule: schedule, notifier: notifier, metrics: metrics, log: log,
		lobbySince: make(map[linkID]time.Time),
	}
}

// The reasons for closing links, besides those of identity.KeyStatus.
const (
	reasonNobodyKnows identity.Reason = "nobody-knows"
	reasonLobby       identity.Reason = "lobby"
	reasonClaimsHub   identity.Reason = "claims-hub"
)

const (
	// lobbyTimeout is how long a link may be in the lobby. The work that it may do there takes a second.
	lobbyTimeout = 5 * time.Minute
	// kickRetry is how soon a link that could not be closed is tried again.
	kickRetry = time.Second
	// maxParallel is the number of nodes that are evaluated, and of links that are closed, concurrently: a server that
	// does not answer costs kickTimeout.
	maxParallel = 32
)

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
	if err := json.Unmarshal(data, &c); err == nil && identity.IsNodeName(c.Client.Name) {
		e.links.forgetLink(Admission{Server: c.Server.ID, CID: c.Client.ID, Node: c.Client.Name})
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
		case <-e.schedule.nodesChanged:
		case <-timer.C:
		}
		timer.Reset(e.enforceDue(ctx))
	}
}

// enforceDue evaluates the nodes that are due, concurrently, and returns the time until the next one is.
func (e *Enforcer) enforceDue(ctx context.Context) (wait time.Duration) {
	nodes, wait := e.schedule.dueNodes(time.Now())
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
	revoked := e.schedule.IsClosing(node) // read before the evaluation: the record that it uses then contains the revocation, too
	over := e.evaluateNode(ctx, node, time.Now())
	switch {
	case !revoked:
	case !over:
		e.schedule.scheduleNode(node, kickRetry)
	default:
		e.schedule.markClosed(node)
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
		case <-e.schedule.cellsChanged:
		case <-timer.C:
		}
		account, wait := e.schedule.dueCell(time.Now())
		if account == "" {
			timer.Reset(wait)
			continue
		}
		if err := e.evaluateCell(ctx, account); err != nil && ctx.Err() == nil {
			e.log.Warn("cell not looked through, tried again", zap.String("account", account), zap.Error(err))
			e.schedule.scheduleCell(account, []time.Duration{kickRetry})
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
			e.schedule.scheduleCell(e.schedule.accountOf(record.Node), []time.Duration{0})
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
