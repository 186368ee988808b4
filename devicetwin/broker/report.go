package broker

import (
	"context"
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

// ReportValues takes values of a device from its mapper, as it takes those of messages: when it returns nil they are stored, and the apps know of them.
// The error is devicetwin.ErrNoDevice, a *devicetwin.Refusal, or another one: then the mapper may report again.
func (s *Server) ReportValues(ctx context.Context, id types.NamespacedName, update devicetwin.Update, received time.Time) error {
	return s.report(ctx, &report{id: id, update: update, received: received, done: make(chan error, 1)})
}

// ReportState takes the state of a device from its mapper. Its errors are those of ReportValues.
func (s *Server) ReportState(ctx context.Context, id types.NamespacedName, state string, received time.Time) error {
	return s.report(ctx, &report{id: id, state: &state, received: received, done: make(chan error, 1)})
}

func (s *Server) report(ctx context.Context, r *report) error {
	select {
	case s.reports <- received{report: r}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it may be stored all the same
	}
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
	return reply{report: r, done: b.delta(after), samples: samplesOf(r.id, r.update, admission.Fragment.Reported, r.received)}
}

// SetCondition sets a condition of a device beside those that the twin makes itself; it is stored and reported with them. A device that is not there
// has none.
func (s *Server) SetCondition(ctx context.Context, id types.NamespacedName, condition devicetwin.Condition) error {
	return s.change(ctx, func(ctx context.Context) error {
		if s.bridge.twins.SetCondition(id, condition) {
			return s.bridge.commit(ctx)
		}
		return nil
	})
}
