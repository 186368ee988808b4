package broker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/mqtt"
)

// The messages that a device's apps may send, more than the mapper that sends most (800 a second for 2,000 properties, measured) needs for one device.
const (
	deviceRate  = 200
	deviceBurst = 1000
	// refusalInterval is between two lines of the log that say that batches are refused.
	refusalInterval = time.Minute
)

// publisher sends messages to apps.
type publisher interface {
	Publish(ctx context.Context, messages ...Message) error
}

// bridge answers apps. It belongs to one goroutine.
type bridge struct {
	node    string
	twins   *devicetwin.Twins
	apps    publisher
	now     func() time.Time
	log     *zap.Logger
	metrics *metrics
	// limits has the devices that have sent something.
	limits map[types.NamespacedName]*rate.Limiter
	rate   rate.Limit
	burst  int
	// recorder may be nil.
	recorder Recorder
	// uncommitted: twins have changed whose apps were answered.
	uncommitted bool
	// refusing limits the log of batches that are refused.
	refusing rate.Sometimes
	// observer may be nil.
	observer Observer
}

// reply is what a message is answered with: done once its change is stored, failed if it could not be stored.
type reply struct {
	done, failed []Message
	samples      []Sample
	// flow: it may be answered before it is stored.
	flow bool
	// report is that of a mapper, and refused why it is not taken.
	report  *report
	refused error
}

// handleBatch takes messages of apps, stores what they change, together, and answers them. The answers of a message are in KubeEdge's order. An answer
// that cannot be sent is lost, as it would be for an app that is not there; the change stays.
func (b *bridge) handleBatch(ctx context.Context, batch []received) error {
	replies := make([]reply, 0, len(batch))
	for _, r := range batch {
		if r.report != nil {
			replies = append(replies, b.handleReport(r.report))
			continue
		}
		replies = append(replies, b.handle(r.message))
	}
	err := b.store(ctx, replies)
	if ctx.Err() != nil {
		return ctx.Err() // the messages come again
	}
	if err != nil {
		b.metrics.refused.WithLabelValues("store").Inc()
		b.refusing.Do(func() { b.log.Error("devices' values are refused", zap.Error(err)) })
	}
	var answers []Message
	for _, r := range replies {
		if err != nil {
			answers = append(answers, r.failed...)
		} else {
			answers = append(answers, r.done...)
		}
		if r.report != nil {
			answer := err
			if r.refused != nil {
				answer = r.refused
			}
			r.report.done <- answer
		}
	}
	b.send(ctx, answers)
	return nil
}

// store stores what a batch changes, and its samples. Nothing is changed if the recorder cannot take them.
func (b *bridge) store(ctx context.Context, replies []reply) error {
	if b.recorder != nil {
		if err := b.recorder.CheckWritable(); err != nil && b.twins.Discard() {
			return err
		}
	}
	// All or none, so that answers keep their order.
	if b.uncommitted = !slices.ContainsFunc(replies, func(r reply) bool { return !r.flow }); b.uncommitted {
		return b.record(ctx, replies, b.recorder.Enqueue)
	}
	if err := b.commit(ctx); err != nil {
		return err
	}
	if b.recorder == nil {
		return nil
	}
	return b.record(ctx, replies, b.recorder.Record)
}

// commitFlow stores the twins of what was answered before it was stored.
func (b *bridge) commitFlow(ctx context.Context) {
	b.uncommitted = false
	if err := b.commit(ctx); err != nil && ctx.Err() == nil {
		b.metrics.refused.WithLabelValues("store").Inc()
		b.refusing.Do(func() { b.log.Error("values of devices are lost until they are reported again", zap.Error(err)) })
	}
}

// commit stores what has changed and tells the observer.
func (b *bridge) commit(ctx context.Context) error {
	changed, removed, err := b.twins.Commit(ctx)
	if err == nil && b.observer != nil && len(changed)+len(removed) > 0 {
		b.observer.TwinsChanged(changed, removed)
	}
	return err
}

// record hands the samples of a batch on.
func (b *bridge) record(ctx context.Context, replies []reply, to func(context.Context, []Sample) error) error {
	var samples []Sample
	size := 0
	for _, r := range replies {
		// What a crash leaves unstored begins with a message: a record of the store ends with one.
		if next := sizeOf(r.samples); size+next > recordSize && size > 0 {
			if err := to(ctx, samples); err != nil {
				return err
			}
			samples, size = nil, next
		} else {
			size += next
		}
		samples = append(samples, r.samples...)
	}
	if len(samples) == 0 {
		return nil
	}
	return to(ctx, samples)
}

// recordSize is what is recorded at a time, so that it is one record of the store.
const recordSize = 48 << 10

func sizeOf(samples []Sample) (size int) {
	for _, s := range samples {
		size += len(s.Device.Namespace) + len(s.Device.Name) + len(s.Property) + len(s.Value) + 100
	}
	return size
}

// samplesOf returns the values that a message reports and that were admitted, also those that are too old for the twin.
func samplesOf(id types.NamespacedName, u devicetwin.Update, admitted map[string]devicetwin.Sample, received time.Time) []Sample {
	samples := make([]Sample, 0, len(admitted))
	for _, name := range slices.Sorted(maps.Keys(admitted)) {
		if admitted[name].Deleted {
			continue
		}
		s := Sample{Device: id, Property: name, Value: admitted[name].Value, Received: received}
		if at := cmp.Or(u.Properties[name].ActualTime, u.Time); at != 0 {
			s.Time = time.UnixMilli(at)
		}
		samples = append(samples, s)
	}
	return samples
}

func (b *bridge) send(ctx context.Context, messages []Message) {
	if len(messages) == 0 {
		return
	}
	if err := b.apps.Publish(ctx, messages...); err != nil && ctx.Err() == nil {
		b.log.Warn("an answer to an app is lost", zap.Error(err))
	}
}

func (b *bridge) handle(m Message) reply {
	topic, err := mqtt.ParseTopic(m.Topic)
	if err != nil || !topic.FromApp() {
		b.refuse("topic", m.Topic, err)
		return reply{}
	}
	b.metrics.messages.WithLabelValues(string(topic.Kind)).Inc()
	switch topic.Kind {
	case mqtt.TwinUpdate:
		return b.handleUpdate(topic, m)
	case mqtt.TwinGet:
		return b.handleGet(topic, m)
	case mqtt.StateUpdate:
		return b.handleState(topic, m)
	default:
		return b.handleMembership(topic, m)
	}
}

func (b *bridge) refuse(reason, topic string, err error) {
	b.metrics.refused.WithLabelValues(reason).Inc()
	b.log.Debug("message refused", zap.String("topic", topic), zap.String("reason", reason), zap.Error(err))
}

func deviceOf(topic mqtt.Topic) types.NamespacedName {
	return types.NamespacedName{Namespace: topic.Namespace, Name: topic.Name}
}

// allow reports whether a device may have sent another message at a time. What was received while the gateway was down or busy is handled at once, and
// counts when it was received. A device that does not exist has no limiter, so that names cost no memory.
func (b *bridge) allow(id types.NamespacedName, received time.Time) bool {
	if _, err := b.twins.Get(id); err != nil {
		delete(b.limits, id)
		return true
	}
	limiter := b.limits[id]
	if limiter == nil {
		limiter = rate.NewLimiter(b.rate, b.burst)
		b.limits[id] = limiter
	}
	return limiter.AllowN(received, 1)
}

// fail answers that a message is refused.
func (b *bridge) fail(topic mqtt.Topic, result mqtt.Kind, eventID string, err error) reply {
	code, reason := mqtt.CodeBadRequest, "form"
	var refusal *devicetwin.Refusal
	switch {
	case errors.As(err, &refusal):
		reason = refusal.Reason
	case errors.Is(err, devicetwin.ErrNoDevice):
		code, reason = mqtt.CodeNotFound, "device"
	case errors.Is(err, errTooMany):
		code, reason = mqtt.CodeTooMany, "rate"
	}
	b.refuse(reason, topic.String(), err)
	answer := b.failure(topic, result, eventID, code, err)
	return reply{done: answer, failed: answer}
}

// errTooMany reports a device above its rate.
var errTooMany = errors.New("the device sends more messages than are allowed")

// errNotStored is what an app is told when the twins cannot be stored.
var errNotStored = errors.New("the gateway could not store the value; send it again")

func (b *bridge) failure(topic mqtt.Topic, result mqtt.Kind, eventID string, code int, err error) []Message {
	return []Message{encode(topic, result, mqtt.Failure{Envelope: b.envelope(eventID), Code: code, Reason: err.Error()})}
}

func (b *bridge) envelope(eventID string) mqtt.Envelope {
	return mqtt.Envelope{EventID: eventID, Timestamp: b.now().UnixMilli()}
}

// ownEnvelope is of a message that answers no event.
func (b *bridge) ownEnvelope() mqtt.Envelope { return b.envelope(uuid.NewString()) }

func (b *bridge) handleUpdate(topic mqtt.Topic, m Message) reply {
	message, err := mqtt.DecodeTwinUpdate(m.Payload)
	if err == nil && !b.allow(deviceOf(topic), m.Received.Time) {
		err = errTooMany
	}
	if err != nil {
		return b.fail(topic, mqtt.TwinUpdateResult, message.EventID, err)
	}
	before, err := b.twins.Get(deviceOf(topic))
	if err != nil {
		return b.fail(topic, mqtt.TwinUpdateResult, message.EventID, err)
	}
	update := updateOf(message)
	after, admission, err := b.twins.Update(deviceOf(topic), update, m.Received)
	if err != nil {
		return b.fail(topic, mqtt.TwinUpdateResult, message.EventID, err)
	}
	b.metrics.stale.Add(float64(admission.Stale))
	b.metrics.future.Add(float64(admission.Future))
	envelope := b.envelope(message.EventID)
	done := []Message{
		encode(topic, mqtt.TwinUpdateResult, mqtt.Twin{Envelope: envelope, Twin: resultOf(message, after, envelope.Timestamp)}),
		encode(topic, mqtt.TwinUpdateDocument, mqtt.Document{Envelope: envelope, Twin: documentOf(message, before, after, envelope.Timestamp)}),
	}
	return reply{
		done:    append(done, b.delta(after)...),
		failed:  b.failure(topic, mqtt.TwinUpdateResult, message.EventID, mqtt.CodeInternal, errNotStored),
		samples: samplesOf(deviceOf(topic), update, admission.Fragment.Reported, m.Received.Time),
		flow:    b.recorder != nil && after.Spec.IsFlow(update),
	}
}

// delta returns the message with the desired values that the device does not report, if there are any.
func (b *bridge) delta(twin devicetwin.Twin) []Message {
	delta := devicetwin.Delta(twin.Spec, twin.Record)
	if len(delta) == 0 {
		return nil
	}
	envelope := b.ownEnvelope()
	topic := mqtt.DeviceTopic(twin.Spec.ID.Namespace, twin.Spec.ID.Name, mqtt.TwinUpdateDelta)
	return []Message{encode(topic, topic.Kind, mqtt.Delta{Envelope: envelope, Twin: withExpected(twin, envelope.Timestamp), Delta: delta})}
}

func (b *bridge) handleGet(topic mqtt.Topic, m Message) reply {
	event, err := mqtt.DecodeTwinGet(m.Payload)
	if err == nil && !b.allow(deviceOf(topic), m.Received.Time) {
		err = errTooMany
	}
	if err != nil {
		return b.fail(topic, mqtt.TwinGetResult, event.EventID, err)
	}
	twin, err := b.twins.Get(deviceOf(topic))
	if err != nil {
		return b.fail(topic, mqtt.TwinGetResult, event.EventID, err)
	}
	envelope := b.envelope(event.EventID)
	done := []Message{encode(topic, mqtt.TwinGetResult, mqtt.Twin{Envelope: envelope, Twin: all(twin, envelope.Timestamp)})}
	return reply{done: done, failed: b.failure(topic, mqtt.TwinGetResult, event.EventID, mqtt.CodeInternal, errNotStored)}
}

// handleState answers nothing to what it refuses, as KubeEdge.
func (b *bridge) handleState(topic mqtt.Topic, m Message) reply {
	state, err := mqtt.DecodeState(m.Payload)
	if err != nil {
		b.refuse("form", topic.String(), err)
		return reply{}
	}
	if !b.allow(deviceOf(topic), m.Received.Time) {
		b.refuse("rate", topic.String(), errTooMany)
		return reply{}
	}
	twin, admission, err := b.twins.UpdateState(deviceOf(topic), state.State, mqtt.IsOnline(state.State), state.Timestamp, m.Received)
	if err != nil {
		b.refuse("device", topic.String(), err)
		return reply{}
	}
	b.metrics.stale.Add(float64(admission.Stale))
	b.metrics.future.Add(float64(admission.Future))
	return reply{done: []Message{encode(topic, mqtt.StateUpdateResult, mqtt.StateResult{Envelope: b.ownEnvelope(), Device: stateOf(twin)})}}
}

func (b *bridge) handleMembership(topic mqtt.Topic, m Message) reply {
	event, err := mqtt.DecodeMembershipGet(m.Payload)
	if err != nil {
		return b.fail(topic, mqtt.MembershipGetResult, event.EventID, err)
	}
	if topic.Node != b.node {
		b.refuse("node", topic.String(), nil)
		return reply{}
	}
	members := []mqtt.Member{}
	for _, id := range b.twins.IDs() {
		if twin, err := b.twins.Get(id); err == nil {
			members = append(members, memberOf(twin))
		}
	}
	done := []Message{encode(topic, mqtt.MembershipGetResult, mqtt.Membership{Envelope: b.envelope(event.EventID), Devices: members})}
	return reply{done: done, failed: done}
}

// setDevice takes a Device that came or changed, and tells the apps: those that list the node's devices, and those that apply desired values.
func (b *bridge) setDevice(ctx context.Context, spec devicetwin.Spec) error {
	twin, created := b.twins.SetDevice(spec)
	if err := b.commit(ctx); err != nil {
		return err
	}
	var messages []Message
	if created {
		messages = b.membership(mqtt.MembershipUpdate{Added: []mqtt.Member{{ID: spec.ID.String(), Name: spec.ID.Name, Description: spec.Description}}})
	}
	b.send(ctx, append(messages, b.delta(twin)...))
	return nil
}

// removeDevice forgets a device.
func (b *bridge) removeDevice(ctx context.Context, id types.NamespacedName) error {
	delete(b.limits, id)
	known := b.twins.RemoveDevice(id)
	if err := b.commit(ctx); err != nil {
		return err
	}
	if known {
		b.send(ctx, b.membership(mqtt.MembershipUpdate{Removed: []mqtt.Member{{ID: id.String()}}}))
	}
	return nil
}

func (b *bridge) membership(update mqtt.MembershipUpdate) []Message {
	update.Envelope = b.ownEnvelope()
	topic := mqtt.NodeTopic(b.node, mqtt.MembershipUpdated)
	return []Message{encode(topic, topic.Kind, update)}
}

// removeOrphans forgets the records of devices that do not exist any more.
func (b *bridge) removeOrphans(ctx context.Context) error {
	b.twins.RemoveOrphans()
	return b.commit(ctx)
}
