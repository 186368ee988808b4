package scopes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// registryEntry is the registry's value for a node.
type registryEntry struct {
	// Written increases with each write and is close to the time in milliseconds, so that a later entry is recognised
	// as such also after the registry was lost.
	Written int64 `json:"written"`
	// Order is the node's own order number of the request that Wants came with.
	Order   uint64           `json:"order"`
	Wants   []wire.ScopeWant `json:"wants"`
	Granted []grant          `json:"granted"`
	// ServicesByNeed is that of the request that Wants came with.
	ServicesByNeed bool `json:"servicesByNeed,omitempty"`
}

// grant is a scope and the users that may have it.
type grant struct {
	wire.ScopeKind
	Users []string `json:"users"`
}

func (e registryEntry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode for the registry: %w", err)
	}
	return data, nil
}

func decodeEntry(value []byte) (registryEntry, error) {
	var e registryEntry
	if err := json.Unmarshal(value, &e); err != nil {
		return registryEntry{}, fmt.Errorf("entry of the registry: %w", err)
	}
	return e, nil
}

// next returns the entry that replaces e.
func (e registryEntry) next(request wire.ScopesRequest, granted []grant, now time.Time) registryEntry {
	return registryEntry{
		Written: max(e.Written+1, now.UnixMilli()), Order: request.Order, Wants: request.Wants, Granted: granted, ServicesByNeed: request.ServicesByNeed,
	}
}

// request returns the request that the entry came with.
func (e registryEntry) request() wire.ScopesRequest {
	return wire.ScopesRequest{Order: e.Order, Wants: e.Wants, ServicesByNeed: e.ServicesByNeed}
}

// normalizeWants sorts a node's wants, with each scope once and each user once in it.
func normalizeWants(wants []wire.ScopeWant) []wire.ScopeWant {
	users := map[wire.Scope][]string{}
	for _, w := range wants {
		users[w.Scope] = append(users[w.Scope], w.Users...)
	}
	out := make([]wire.ScopeWant, 0, len(users))
	for scope, names := range users {
		slices.Sort(names)
		out = append(out, wire.ScopeWant{Scope: scope, Users: slices.Compact(names)})
	}
	slices.SortFunc(out, func(a, b wire.ScopeWant) int { return compareScopes(a.Scope, b.Scope) })
	return out
}

func compareScopes(a, b wire.Scope) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Version, b.Version))
}

func sameWants(a, b []wire.ScopeWant) bool {
	return slices.EqualFunc(a, b, func(x, y wire.ScopeWant) bool { return x.Scope == y.Scope && slices.Equal(x.Users, y.Users) })
}

func sameGrants(a, b []grant) bool {
	return slices.EqualFunc(a, b, func(x, y grant) bool { return x.ScopeKind == y.ScopeKind && slices.Equal(x.Users, y.Users) })
}

func grantIndex(grants []grant, scope wire.Scope) int {
	return slices.IndexFunc(grants, func(g grant) bool { return g.Scope == scope })
}

// grantsFrom converts verdicts into grants. A right that could not be evaluated stays as it was, for a limited time.
func grantsFrom(verdicts []scopeVerdict, before []grant) []grant {
	out := []grant{}
	taken := map[wire.Key]bool{}
	for _, v := range verdicts {
		at := grantIndex(before, v.kind.Scope)
		var held []string
		if at >= 0 {
			held = before[at].Users
		}
		g := grant{ScopeKind: v.kind}
		for _, u := range v.users {
			if v.keepsScope(u, held) {
				g.Users = append(g.Users, u.User)
			}
		}
		if g.Kind == "" && at >= 0 {
			g.ScopeKind = before[at].ScopeKind
		}
		// Only one version of a resource can be delivered, but a grant from before may be of another.
		if marker := g.Marker(); len(g.Users) > 0 && g.Kind != "" && !taken[marker] {
			taken[marker] = true
			out = append(out, g)
		}
	}
	return out
}
