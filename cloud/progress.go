package cloud

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/streams"
)

// progressOf compares a heartbeat's cursor with what the engine has published. A cursor of another life of the stream proves
// nothing of this one: such a node lacks everything.
func progressOf(engine *desired.Engine, keeper *streams.Keeper, node string, beat wire.Beat) func() nodes.Progress {
	return func() (p nodes.Progress) {
		epoch, sequence := keeper.Epoch(), uint64(0)
		if beat.StreamEpoch == epoch {
			sequence = beat.Sequence
		}
		p.Behind, p.Oldest, p.Known = engine.Progress(node, sequence)
		p.Known = p.Known && epoch != ""
		return p
	}
}
