package desired

import "github.com/frond-edge/frond/api/wire"

// NewPublishedEngine creates an Engine whose record of the stream has these messages for a node.
func NewPublishedEngine(node string, held map[wire.Key]wire.Message) *Engine {
	s := newNodeState(node)
	s.published.EndLoad(s.published.BeginLoad(), held, "", 0)
	s.published.SetPending(nil)
	return &Engine{nodes: &nodeTable{nodes: map[string]*nodeState{node: s}}}
}

// Idle reports whether nothing waits to be compared or published.
func (e *Engine) Idle() bool { return e.nodes.work.Len() == 0 }
