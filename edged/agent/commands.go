package agent

import (
	"errors"

	"github.com/frond-edge/frond/edged/diskmonitor"
	"github.com/frond-edge/frond/edged/resync"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/link"
)

// commandHandlers returns the handlers of the cloud's commands to this node.
func commandHandlers(down downward, again *resync.Reporter, nudges *call.ReportRequests, beater *call.Heartbeater, expectStop func(hubServer string)) map[string]func([]byte) {
	return map[string]func([]byte){
		call.VerbResync:  func([]byte) { down.delivery.Resync() },
		call.VerbDied:    func(server []byte) { down.delivery.ServerDied(string(server)) },
		call.VerbStops:   func(server []byte) { expectStop(string(server)) },
		call.VerbReports: func([]byte) { again.RequestReport() },
		call.VerbReport:  nudges.Enqueue,
		call.VerbWho:     beater.AnswerProbe,
		call.VerbFence: func(instance []byte) {
			if own, _ := down.delivery.Identity(); own == string(instance) {
				down.gate.Fence(link.FenceDuration)
			}
		},
	}
}

// readinessChecks returns the checks that make the node ready.
func readinessChecks(f *foundation, down downward, disk *diskmonitor.Monitor, kubelet *kubeletHealth) []health.Check {
	check := func(name string, fine func() bool, why string) health.Check {
		return health.Check{Name: name, Ready: func() error {
			if !fine() {
				return errors.New(why)
			}
			return nil
		}}
	}
	return []health.Check{
		{Name: "disk", Ready: disk.CheckReady},
		check("kubelet", kubelet.isAlive, "the kubelet has not renewed its lease in time"),
		check("identity", func() bool { return !down.gate.Fenced() }, "another agent with this node's identity was connected first"),
		check("store", func() bool { return down.store.Cursor().StreamEpoch != "" }, "this gateway has never been attached to the cloud"),
		{Name: "enrolment", Ready: f.identity.CheckReady},
	}
}
