package edgenode

import (
	"errors"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams"
)

// identify puts into a beat which process of this node sends it.
func identify(beat *wire.Beat, delivery *streams.Delivery, gate *streams.Gate) {
	instance, since := delivery.Identity()
	beat.Instance, beat.Since, beat.Fenced = instance, since.Milliseconds(), gate.Fenced()
}

// obey says who does what the cloud tells this node.
func obey(delivery *streams.Delivery, again *resync, beater *streams.Beater, gate *streams.Gate) map[string]func([]byte) {
	return map[string]func([]byte){
		streams.VerbResync:  func([]byte) { delivery.Resync() },
		streams.VerbDied:    func(server []byte) { delivery.ServerDied(string(server)) },
		streams.VerbReports: func([]byte) { again.ask() },
		streams.VerbWho:     beater.Answer,
		streams.VerbFence: func(instance []byte) {
			if own, _ := delivery.Identity(); own == string(instance) {
				gate.Fence(streams.FenceFor)
			}
		},
	}
}

// checks are what makes the node ready.
func checks(st *store.Store, disk *storage, kubelet *pulse, gate *streams.Gate) []health.Check {
	check := func(name string, fine func() bool, why string) health.Check {
		return health.Check{Name: name, Ready: func() error {
			if !fine() {
				return errors.New(why)
			}
			return nil
		}}
	}
	return []health.Check{
		{Name: "disk", Ready: disk.ready},
		check("kubelet", kubelet.beats, "the kubelet has not renewed its lease in time"),
		check("identity", func() bool { return !gate.Fenced() }, "another agent with this node's identity was connected first"),
		check("store", func() bool { return st.Cursor().StreamEpoch != "" }, "this gateway has never been attached to the cloud"),
	}
}
