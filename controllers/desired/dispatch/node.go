package dispatch

import (
	"slices"

	"github.com/frond-edge/frond/api/wire"
)

// maxChanged is how many changes of a node are processed first after its load. The load compares all objects anyhow, later.
const maxChanged = 64

// Published is what the stream holds for a node.
type Published interface {
	// Loaded reports whether that is known. It must not call a Queue.
	Loaded() bool
}

// Node is the part of a Queue that concerns one node. The Queue's lock guards it.
type Node struct {
	name      string
	published Published
	// loadWanted: the stream is to be read for the node.
	loadWanted bool
	// loading: it is being read.
	loading bool
	// changed are the objects with a change that waits for the load, in the order of their first changes.
	changed []wire.Key
}

// NewNode creates a Node that no load was asked for.
func NewNode(name string, published Published) *Node { return &Node{name: name, published: published} }

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

func (n *Node) addChanged(key wire.Key) {
	if len(n.changed) < maxChanged && !slices.Contains(n.changed, key) {
		n.changed = append(n.changed, key)
	}
}
