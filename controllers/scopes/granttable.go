package scopes

import (
	"errors"
	"slices"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// GrantTable holds in memory what the registry says about each node. It is empty, and not loaded, until its
// GrantController runs.
type GrantTable struct {
	mu      sync.Mutex
	entries map[string]registryEntry // guarded by mu
	// loaded: the registry has been read once, so a node without an entry in entries has none there; guarded by mu.
	loaded bool
}

// NewGrantTable creates an empty table.
func NewGrantTable() *GrantTable { return &GrantTable{entries: map[string]registryEntry{}} }

// Granted returns the scopes that a node was granted. told is false for a node that has sent no request, as far as the
// registry knows. An error means that the registry was not read yet. It does not block.
func (t *GrantTable) Granted(node string) (granted []wire.ScopeKind, told bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded {
		return nil, false, errNotLoaded
	}
	e, told := t.entries[node]
	for _, g := range e.Granted {
		granted = append(granted, g.ScopeKind)
	}
	return granted, told, nil
}

// ServicesByNeed reports whether a node asks for the scopes on Services and EndpointSlices that it wants; false if that is not
// known. It does not block.
func (t *GrantTable) ServicesByNeed(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entries[node].ServicesByNeed
}

var errNotLoaded = errors.New("the registry of scopes was not read yet")

// put stores an entry, unless a later one is known, and reports whether it changes the node's grants.
func (t *GrantTable) put(node string, e registryEntry) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.entries[node]
	if known && last.Written >= e.Written {
		return false
	}
	t.entries[node] = e
	return t.loaded && (!known || last.ServicesByNeed != e.ServicesByNeed || !sameGrants(last.Granted, e.Granted))
}

// remove removes a node's entry.
func (t *GrantTable) remove(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.entries, node)
}

// get returns a node's entry.
func (t *GrantTable) get(node string) (registryEntry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[node]
	return e, ok
}

// markLoaded records that the registry has been read, and the first time returns all nodes that have an entry.
func (t *GrantTable) markLoaded() (nodes []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loaded {
		return nil
	}
	t.loaded = true
	for node := range t.entries {
		nodes = append(nodes, node)
	}
	return nodes
}

// nodesOf returns the nodes with an entry for which owned returns true, sorted.
func (t *GrantTable) nodesOf(owned func(node string) bool) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var nodes []string
	for node := range t.entries {
		if owned(node) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// countGranted returns the number of scopes granted to the nodes for which owned returns true.
func (t *GrantTable) countGranted(owned func(node string) bool) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for node, e := range t.entries {
		if owned(node) {
			n += len(e.Granted)
		}
	}
	return float64(n)
}

func (t *GrantTable) countNodes() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return float64(len(t.entries))
}
