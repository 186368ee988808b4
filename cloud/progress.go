package cloud

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/streams/topology"
)

// nodeProgress compares a heartbeat's cursor with what the engine has published. A cursor of another incarnation of the
// stream proves nothing about this one: such a node counts as having nothing.
func nodeProgress(engine *desired.Engine, keeper *topology.Reconciler, node string, beat wire.Heartbeat) func() nodes.Progress {
	return func() (p nodes.Progress) {
		epoch, sequence := keeper.Epoch(), uint64(0)
		if beat.StreamEpoch == epoch {
			sequence = beat.Sequence
		}
		p.Behind, p.Oldest, p.Loaded = engine.Progress(node, sequence)
		p.Loaded = p.Loaded && epoch != ""
		return p
	}
}
