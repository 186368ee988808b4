package broker

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/mqtt"
)

// report is what a mapper says of a device: values, or a state.
type report struct {
	id       types.NamespacedName
	update   devicetwin.Update
	state    *string
	received time.Time
	done     chan error // has room for the one answer
}

// handleReport takes a report of a mapper.
func (b *bridge) handleReport(r *report) reply {
	at := devicetwin.Reception{Time: r.received}
	topic := mqtt.DeviceTopic(r.id.Namespace, r.id.Name, mqtt.StateUpdateResult)
	if r.state != nil {
		twin, _, err := b.twins.UpdateState(r.id, *r.state, mqtt.IsOnline(*r.state), 0, at)
		if err != nil {
			return reply{report: r, refused: err}
		}
		return reply{report: r, done: []Message{encode(topic, mqtt.StateUpdateResult, mqtt.StateResult{Envelope: b.ownEnvelope(), Device: stateOf(twin)})}}
	}
	after, admission, err := b.twins.Update(r.id, r.update, at)
	if err != nil {
		return reply{report: r, refused: err}
	}
	b.metrics.stale.Add(float64(admission.Stale))
	b.metrics.future.Add(float64(admission.Future))
	return reply{report: r, done: b.delta(after), samples: samplesOf(r.id, r.update, admission.Fragment.Reported, r.received), flow: b.recorder != nil && after.Spec.IsFlow(r.update)}
}
