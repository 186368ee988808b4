package links

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

	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/streams/subject"
)

// readTimeout bounds a live read of a node's record from Kubernetes.
const readTimeout = 5 * time.Second

// verdictCache evaluates the keys of one node by this replica's records. Before it refuses a key only because this
// replica may lack a newer record, it reads the record from Kubernetes. It reads once at most.
type verdictCache struct {
	records  Records
	node     string
	now      time.Time
	readLive func() (*identity.Record, error)
}

func (e *Enforcer) newVerdictCache(ctx context.Context, node string, now time.Time) verdictCache {
	return verdictCache{records: e.records, node: node, now: now, readLive: sync.OnceValues(func() (*identity.Record, error) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return e.records.ReadLive(ctx, node)
	})}
}

// keyStatus returns why a key does not authenticate as the node; "" if it does. An error means that this cannot be
// determined: then everything stays unchanged.
func (c verdictCache) keyStatus(key func(*identity.Record) string) (identity.Reason, error) {
	record := c.records.Lookup(c.node)
	why := identity.KeyStatus(record, key(record), c.records.IsRevoked(key(record)), c.now)
	if why == "" || why == identity.ReasonRevokedKey { // a revoked key is rejected permanently
		return why, nil
	}
	is, err := c.readLive()
	switch {
	case err == nil:
		return identity.KeyStatus(is, key(is), c.records.IsRevoked(key(is)) || is != nil && slices.Contains(is.Revoked, key(is)), c.now), nil
	case why == identity.ReasonExpired, record != nil && !record.RevokedAt.IsZero():
		return why, nil // it was revoked, or has expired
	}
	return why, err
}

// isSuspect reports whether unknown links of the node are suspect.
func (c verdictCache) isSuspect() bool {
	record := c.records.Lookup(c.node)
	if !isSuspect(record, c.now) {
		return false
	}
	is, err := c.readLive()
	if err != nil {
		return record != nil
	}
	return isSuspect(is, c.now)
}

func currentKey(record *identity.Record) string {
	if record == nil {
		return ""
	}
	return record.Key
}

// evaluateNode closes those known links of a node whose key is no longer valid, concurrently. It reports whether none
// of them is left.
func (e *Enforcer) evaluateNode(ctx context.Context, node string, now time.Time) bool {
	c := e.newVerdictCache(ctx, node, now)
	var g errgroup.Group
	for _, h := range e.links.linksOf(node) {
		g.Go(func() error { return e.evaluateLink(ctx, c, h) })
	}
	if why, err := c.keyStatus(currentKey); err == nil && why != "" {
		e.notifier.CloseStreams(node, "its identity is not valid: "+string(why))
	}
	return g.Wait() == nil
}

// evaluateLink closes a link whose key is not valid for its node. An error means that it may be open although it should not be.
func (e *Enforcer) evaluateLink(ctx context.Context, c verdictCache, h knownLink) error {
	why, err := c.keyStatus(func(*identity.Record) string { return h.Key })
	switch {
	case err != nil:
		e.log.Warn("link left as it is until its node's identity can be read", zap.String("node", h.Node), zap.String("key", h.Key), zap.Error(err))
		return err
	case why == "":
		return nil
	}
	return e.closeInCell(ctx, h.Admission, e.schedule.accountOf(h.Node), why)
}

// closeInCell closes a link of a cell. If that fails, the cell is checked again.
func (e *Enforcer) closeInCell(ctx context.Context, a Admission, account string, why identity.Reason) error {
	err := e.closeLink(ctx, a, why)
	if err != nil {
		e.schedule.scheduleCell(account, []time.Duration{kickRetry})
	}
	return err
}

// closeLink closes a link and removes it from Registry.
func (e *Enforcer) closeLink(ctx context.Context, a Admission, why identity.Reason) error {
	there, err := e.system.kickClient(ctx, a.linkID())
	switch {
	case errors.Is(err, nats.ErrNoResponders): // the server is gone, and the link with it
	case err != nil:
		e.log.Warn("link not closed, tried again", zap.String("node", a.Node), zap.String("key", a.Key), zap.Error(err))
		return err
	case there:
		e.metrics.countKick(why)
		e.log.Info("link closed", zap.String("node", a.Node), zap.String("key", a.Key), zap.String("reason", string(why)))
	}
	e.links.forgetLink(a)
	return nil
}

// evaluateCell lists the links of a cell and closes those that may not stay. Of unknown links, which were admitted
// before any present replica began, it closes those of suspect nodes: a gateway that may connect is back within
// seconds. No leaf is admitted under another name than its node's.
func (e *Enforcer) evaluateCell(ctx context.Context, account string) error {
	links, err := e.system.listLeafs(ctx, account)
	if err != nil || len(links) == 0 {
		return err
	}
	whose, err := e.links.resolveLinks(ctx, slices.Collect(maps.Keys(links)))
	if err != nil {
		return err
	}
	now := time.Now()
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for one, leaf := range links {
		h, known := whose[one]
		g.Go(func() error {
			unknown := Admission{Server: one.Server, CID: one.CID, Node: leaf.Name, Key: h.Key}
			switch {
			case leaf.Hub:
				_ = e.closeInCell(ctx, unknown, account, reasonClaimsHub)
			case known:
				_ = e.evaluateLink(ctx, e.newVerdictCache(ctx, h.Node, now), h)
			case e.schedule.isStrict(leaf.Name, now) || e.newVerdictCache(ctx, leaf.Name, now).isSuspect():
				_ = e.closeInCell(ctx, unknown, account, reasonNobodyKnows)
			}
			return nil // a failure is logged, and the cell is checked again
		})
	}
	return g.Wait()
}

// evaluateLobby closes links that have been in the lobby for too long. The nodes of these links are not announced, so
// the lobby is never evaluated as a cell is: a link that cannot be closed is tried again in a minute.
func (e *Enforcer) evaluateLobby(ctx context.Context, now time.Time) error {
	links, err := e.system.listLeafs(ctx, subject.LobbyAccount)
	if err != nil {
		return err
	}
	since := make(map[linkID]time.Time, len(links))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for one, leaf := range links {
		begun, there := e.lobbySince[one]
		if !there {
			begun = now
		}
		since[one] = begun
		why := reasonLobby
		switch {
		case leaf.Hub:
			why = reasonClaimsHub
		case now.Sub(begun) < lobbyTimeout:
			continue
		}
		g.Go(func() error {
			_ = e.closeLink(ctx, Admission{Server: one.Server, CID: one.CID}, why) // logged; the next minute finds it again
			return nil
		})
	}
	e.lobbySince = since
	return g.Wait()
}
