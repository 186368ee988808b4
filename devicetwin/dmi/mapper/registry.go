package mapper

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// Registry has the mappers by protocol. A mapper is made at its first registration and stays.
type Registry struct {
	cfg     Config
	records *recordWriter
	sink    DeliverySink
	calls   *prometheus.CounterVec
	log     *zap.Logger
	catalog *catalog
	// synced is closed when the catalog has all Devices.
	synced     chan struct{}
	markSynced func()

	mu sync.Mutex // guards all below
	// start makes a goroutine. It is nil while the registry does not run.
	start   func(run func(ctx context.Context))
	mappers map[string]*mapper
}

// NewRegistry returns a registry without mappers. calls has the labels call and outcome.
func NewRegistry(cfg Config, store RecordStore, sink DeliverySink, calls *prometheus.CounterVec, log *zap.Logger) *Registry {
	r := &Registry{
		cfg: cfg, records: newRecordWriter(store), sink: sink, calls: calls, log: log, catalog: newCatalog(),
		synced: make(chan struct{}), mappers: map[string]*mapper{},
	}
	r.markSynced = sync.OnceFunc(func() { close(r.synced) })
	return r
}

func (r *Registry) newMapper(protocol string) *mapper {
	return &mapper{
		protocol: protocol, cfg: r.cfg, catalog: r.catalog, records: r.records, sink: r.sink, calls: r.calls,
		log: r.log.With(zap.String("protocol", protocol)), synced: r.synced, wake: make(chan struct{}, 1),
		entries: map[types.NamespacedName]*entry{}, dirty: map[types.NamespacedName]bool{}, models: map[types.NamespacedName][sha256.Size]byte{},
	}
}

// Load makes the mappers that have registered before. start makes a goroutine that the caller waits for.
func (r *Registry) Load(ctx context.Context, start func(run func(ctx context.Context))) error {
	records, err := r.records.store.LoadMapperRecords(ctx)
	if err != nil {
		return fmt.Errorf("load what the mappers have: %w", err)
	}
	protocols, damaged := decodeRecords(records)
	for key, err := range damaged {
		r.log.Error("record of a mapper is damaged and left out", zap.String("key", key), zap.Error(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = start
	for protocol, l := range protocols {
		if l.registration.Address == "" { // it was damaged: the mapper gets everything when it registers
			continue
		}
		m := r.newMapper(protocol)
		m.registration, m.entries, m.link = l.registration, l.entries, newLink(r.cfg, l.registration)
		for id, e := range l.entries {
			e.changed = time.Now() // perhaps just before the restart
			m.dirty[id] = true
		}
		for _, id := range r.catalog.devicesOf(protocol) {
			m.dirty[id] = true
		}
		r.mappers[protocol] = m
		start(m.run)
	}
	return nil
}

// Stop lets no further mapper register.
func (r *Registry) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start = nil
}

// Register takes a registration for a protocol and returns what the mapper gets at once: nil while the registry does not run.
func (r *Registry) Register(ctx context.Context, protocol string, registration Registration, withData bool) *dmipb.MapperRegisterResponse {
	r.mu.Lock()
	m := r.mappers[protocol]
	switch {
	case r.start == nil:
		r.mu.Unlock()
		return nil
	case m == nil:
		m = r.newMapper(protocol)
		r.mappers[protocol] = m
		r.start(m.run)
	}
	r.mu.Unlock()
	return m.register(ctx, registration, withData, time.Now())
}

// IdentityOf returns who is the mapper of a protocol, or "".
func (r *Registry) IdentityOf(protocol string) string {
	m := r.mapperOf(protocol)
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.registration.Identity
}

// ProtocolOf returns the protocol of a device, and whether there is the device.
func (r *Registry) ProtocolOf(id types.NamespacedName) (string, bool) {
	return r.catalog.protocolOf(id)
}

func (r *Registry) mapperOf(protocol string) *mapper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mappers[protocol]
}

// SetDevice takes a Device that came or changed, or with nil its end. The object must not change afterwards.
func (r *Registry) SetDevice(id types.NamespacedName, device *devices.Device) {
	for _, protocol := range r.catalog.setDevice(id, device) {
		if m := r.mapperOf(protocol); m != nil {
			m.markDirty(id)
		}
	}
}

// SetModel takes a DeviceModel that came or changed, or with nil its end: devices that have it stay as they are. The object must not change
// afterwards.
func (r *Registry) SetModel(id types.NamespacedName, model *devices.DeviceModel) {
	for protocol, ids := range r.catalog.setModel(id, model) {
		if m := r.mapperOf(protocol); m != nil {
			m.markDirty(ids...)
		}
	}
}

// Synced says that all Devices of the node were set. No device is removed from a mapper before.
func (r *Registry) Synced() {
	r.markSynced()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mappers {
		m.notify()
	}
}

// AwaitSync waits for Synced, for a time, and reports whether it has come.
func (r *Registry) AwaitSync(ctx context.Context, most time.Duration) (synced bool) {
	select {
	case <-r.synced:
		return true
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-r.synced:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
