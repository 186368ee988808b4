package mapper

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

const (
	// minBackoff and maxBackoff bound the pause before a call is tried again. A dial costs 0.1 ms.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// probeInterval is how often an idle mapper's connection is looked at.
const probeInterval = 10 * time.Second

// mapper brings the mapper of one protocol to the state that the catalog wants. One goroutine makes all calls to it.
type mapper struct {
	protocol string
	cfg      Config
	catalog  *catalog
	records  *recordWriter
	sink     DeliverySink
	calls    *prometheus.CounterVec // call, outcome
	log      *zap.Logger
	// synced is closed when the catalog has all Devices.
	synced <-chan struct{}
	// wake has a buffer of one: the goroutine looks at everything each time.
	wake chan struct{}

	mu           sync.Mutex // guards all below
	registration Registration
	// link is the connection to the present registration; nil: none yet.
	link *link
	// epoch counts registrations. What a call of an earlier one brought is of no interest.
	epoch   int
	entries map[types.NamespacedName]*entry
	// dirty are devices whose want has to be made again.
	dirty map[types.NamespacedName]bool
	// models are the models that this registration has certainly got.
	models map[types.NamespacedName][sha256.Size]byte
	// stopped: run has ended.
	stopped bool
	// unsaved: the record store does not have the registration.
	unsaved bool
	// silent is the model of the device whose call was not answered; nil: the last call was. The mapper may carry that call out when it goes on, and has
	// to answer a probe with this model before the next one: several such calls at once would end it.
	silent *dmipb.DeviceModel
	// awaySince is when the mapper could first not be reached; zero: it can.
	awaySince time.Time
}

// Registration is how a mapper presented itself.
type Registration struct {
	Name string `json:"name"`
	// Address is the path of its socket.
	Address string `json:"address"`
	// Identity and PID are of its process, as peer.Peer has them.
	Identity string `json:"identity"`
	PID      int32  `json:"pid"`
}

// markDirty says that devices, or their models, have changed.
func (m *mapper) markDirty(ids ...types.NamespacedName) {
	m.mu.Lock()
	for _, id := range ids {
		m.dirty[id] = true
	}
	m.mu.Unlock()
	m.notify()
}

func (m *mapper) notify() {
	select {
	case m.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// refresh makes want of all dirty devices again. The caller holds mu.
func (m *mapper) refresh() {
	for id := range m.dirty {
		device, model := m.catalog.get(m.protocol, id)
		e := m.entries[id]
		if e == nil {
			if device == nil {
				continue
			}
			e = &entry{}
			m.entries[id] = e
		}
		e.want, e.modelMissing, e.generation = nil, device != nil && model == nil, 0
		if device != nil {
			e.generation = device.Generation
		}
		if device != nil && model != nil {
			want, err := newWanted(device, model, e.device)
			if err != nil { // as if the model were missing: the mapper keeps what it has
				e.modelMissing, e.err = true, err
				continue
			}
			e.want = want
		}
		e.failures, e.retry = 0, time.Time{} // what was refused may be right now
	}
	clear(m.dirty)
}

// register takes a registration and returns what the mapper gets at once. All the rest comes by calls, as soon as the mapper listens.
func (m *mapper) register(ctx context.Context, r Registration, withData bool, now time.Time) *dmipb.MapperRegisterResponse {
	m.mu.Lock()
	for _, id := range m.catalog.devicesOf(m.protocol) {
		m.dirty[id] = true
	}
	m.refresh()
	again := r.PID == m.registration.PID && r.Identity == m.registration.Identity // the same process, which may have kept devices
	m.registration, m.unsaved = r, true
	m.epoch++
	m.link.close()
	m.link, m.awaySince, m.silent = nil, time.Time{}, nil
	if !m.stopped {
		m.link = newLink(m.cfg, r)
	}
	clear(m.models) // a mapper of KubeEdge's framework finds the models of this answer by name alone, and later by namespace and name
	response, given := &dmipb.MapperRegisterResponse{}, map[types.NamespacedName]bool{}
	if withData {
		response, given = answer(m.entries)
	}
	for id, e := range m.entries {
		before := e.sum
		e.failures, e.retry, e.err, e.changed = 0, time.Time{}, nil, now
		switch {
		case given[id]:
			e.has, e.resend, e.device, e.model, e.sum = present, false, e.want.device, e.want.model, e.want.sum
		case again && e.has != absent:
			e.has, e.resend, e.unsaved = uncertain, true, true
		default:
			e.forget()
		}
		e.unsaved = e.unsaved || e.sum != before
	}
	m.mu.Unlock()
	m.save(ctx)
	m.notify()
	return response
}

// run makes the calls until ctx ends.
func (m *mapper) run(ctx context.Context) {
	defer func() {
		m.mu.Lock()
		m.link.close()
		m.stopped = true
		m.mu.Unlock()
	}()
	for ctx.Err() == nil {
		wait := m.pass(ctx)
		m.publish()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// pass makes the calls that are due and returns when the next one may be.
func (m *mapper) pass(ctx context.Context) time.Duration {
	m.mu.Lock()
	m.refresh()
	link, epoch, silent := m.link, m.epoch, m.silent
	m.mu.Unlock()
	if link == nil {
		return probeInterval
	}
	ready := link.await(ctx) && (silent == nil || link.probe(ctx, silent))
	m.mu.Lock()
	if epoch != m.epoch {
		m.mu.Unlock()
		return 0
	}
	m.setReachable(ready, time.Now())
	steps, wait := m.plan(time.Now())
	if !ready {
		m.mu.Unlock()
		return minBackoff
	}
	m.announce(steps)
	m.mu.Unlock()
	m.save(ctx)
	for _, s := range steps {
		if !m.execute(ctx, link, epoch, s) {
			break
		}
	}
	m.removeModels(ctx, link, epoch)
	m.save(ctx)
	if len(steps) > 0 { // a removal may have become possible
		return min(wait, minBackoff)
	}
	return wait
}

// setReachable notes whether the mapper can be reached. The caller holds mu.
func (m *mapper) setReachable(ready bool, now time.Time) {
	switch {
	case ready && m.silent != nil:
		for _, e := range m.entries { // a call may just be carried out
			if e.has == uncertain && e.resend {
				e.changed = now
			}
		}
		m.silent, m.awaySince = nil, time.Time{}
	case ready:
		m.awaySince = time.Time{}
	case m.awaySince.IsZero():
		m.awaySince = now
		m.log.Warn("mapper cannot be reached", zap.String("address", m.registration.Address), zap.Error(m.link.err()))
	}
}

// step is a call to make.
type step struct {
	id types.NamespacedName
	action
	// want is what update sends. ensure sends device and model of the entry.
	want wanted
}

// plan returns the calls that are due, changes before removals, and the time until there are more. The caller holds mu.
func (m *mapper) plan(now time.Time) ([]step, time.Duration) {
	wait, synced := probeInterval, false
	select {
	case <-m.synced:
		synced = true
	default:
	}
	var steps []step
	for id, e := range m.entries {
		a := e.next()
		if a == nothing {
			if e.want == nil && e.has == absent && !e.modelMissing && !e.unsaved {
				delete(m.entries, id)
			}
			continue
		}
		if a != update && !synced { // its Device may still come
			continue
		}
		if left := e.due(m.cfg.Settle).Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		s := step{id: id, action: a, want: wanted{device: e.device, model: e.model, sum: e.sum}}
		if a == update {
			s.want = *e.want
		}
		steps = append(steps, s)
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.action, b.action), compareNames(a.id, b.id)) })
	return steps, wait
}

// announce notes in the entries what the steps will create. The caller holds mu.
func (m *mapper) announce(steps []step) {
	for _, s := range steps {
		if e := m.entries[s.id]; s.action == update && e.has == absent {
			e.announce(&s.want)
		}
	}
}

// publish tells the twin of each device how far it has come, if that has changed.
func (m *mapper) publish() {
	changed := map[types.NamespacedName]Delivery{}
	m.mu.Lock()
	away := !m.awaySince.IsZero() && time.Since(m.awaySince) >= m.cfg.Unreachable
	for id, e := range m.entries {
		if e.want == nil && !e.modelMissing {
			e.delivery = Delivery{} // a Device of this name that comes later is another one
			continue
		}
		if d := progressOf(e, away, m.registration.Name); !equalDeliveries(d, e.delivery) {
			e.delivery, changed[id] = d, d
		}
	}
	m.mu.Unlock()
	for id, d := range changed {
		m.sink.SetDelivery(id, d)
	}
}

// save stores what has changed.
func (m *mapper) save(ctx context.Context) {
	if err := m.records.write(ctx, m.collect); err != nil && ctx.Err() == nil {
		m.log.Error("what a mapper has could not be stored", zap.Error(err))
	}
}

// collect returns the records that have changed, and a function for when they could not be stored.
func (m *mapper) collect() (map[string][]byte, func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	records, saved := map[string][]byte{}, []*entry{}
	if m.unsaved {
		records[mapperKey(m.protocol)], m.unsaved = encodeRegistration(m.registration), false
	}
	for id, e := range m.entries {
		if e.unsaved {
			records[deviceKey(m.protocol, id)] = encodeEntry(e)
			saved, e.unsaved = append(saved, e), false
		}
	}
	return records, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.unsaved = true
		for _, e := range saved {
			e.unsaved = true
		}
	}
}
