package devices

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/broker/reduce"
	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/edged/devices/override"
	"github.com/frond-edge/frond/edged/devices/recordstore"
	"github.com/frond-edge/frond/leaf/store"
)

// maxUsersFile bounds the file of users.
const maxUsersFile = 1 << 20

// Config configures Devices.
type Config struct {
	Node string
	// Dir is the folder of what is stored for devices, beside the leaf's own.
	Dir      string
	Settings config.Devices
	// Local is the connection to the leaf's own streams, Cloud the one over which cloudcore is called.
	Local, Cloud *nats.Conn
	Link         Link
	// Store has the Devices and their models.
	Store *store.Store
	// Reports takes the status of devices.
	Reports Sink
	// LowSpace reports that the disk has room for control state only: samples and messages are refused then. nil: never.
	LowSpace func() bool
	// CgroupRoot is the control group below which the kubelet makes those of pods.
	CgroupRoot string
	Metrics    prometheus.Registerer
}

// Devices is the part of edgecore that is for devices. Its failures stop nothing else: it tries again.
type Devices struct {
	cfg      Config
	broker   broker.Config
	reporter *reporter
	// overrides are the desired values that were set on the gateway.
	overrides *override.Keeper
	// mappers is the server of mappers while there is one.
	mappers atomic.Pointer[dmi.Server]
	// up is 1 while clients may connect, failures counts the ends of the broker.
	up       prometheus.Gauge
	failures prometheus.Counter
	// fault is why the own broker does not listen, for now.
	fault atomic.Pointer[error]
	log   *zap.Logger
}

// New checks the configuration and reads the file of users. It starts nothing. What only keeps the own broker from starting is no error.
func New(cfg Config, log *zap.Logger) (*Devices, error) {
	m := cfg.Settings.MQTT
	d := &Devices{
		cfg: cfg, reporter: newReporter(cfg.Reports, cfg.Link, log), log: log,
		up:       prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "frond", Subsystem: "mqtt", Name: "up", Help: "1 while MQTT clients may connect to the gateway's broker, or in mode external while the gateway is connected to the other one."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "frond", Subsystem: "mqtt", Name: "failures_total", Help: "Times that the MQTT broker did not start or ended; it is started again."}),
	}
	d.overrides = override.NewKeeper(func(ctx context.Context) (override.Store, error) {
		return recordstore.Open(ctx, recordstore.Overrides(), cfg.Local, log)
	}, now, log.Named("overrides"))
	users, err := readUsers(m.UsersFile)
	if err != nil {
		return nil, err
	}
	d.broker = broker.Config{
		Node: cfg.Node, Dir: filepath.Join(cfg.Dir, "mqtt"), Listen: m.Listen, AllowAnonymous: m.AllowLoopbackAnonymous, Users: users,
		MaxClients: m.MaxClients, MaxStore: int64(m.MaxStoreMiB) << 20,
	}
	d.broker.PeerOnly = !m.OwnBroker()
	if m.ExternalBroker() {
		if err := externalConfig(m.External).Validate(); err != nil {
			return nil, fmt.Errorf("devices.mqtt.external: %w", err)
		}
	}
	if m.SyncAlways {
		d.broker.SyncInterval = -1
	}
	if err := d.broker.Validate(); err != nil {
		return nil, fmt.Errorf("devices.mqtt: %w", err)
	}
	_, err = listenerTLS(m)
	d.fault.Store(&err)
	return d, errors.Join(cfg.Metrics.Register(d.up), cfg.Metrics.Register(d.failures))
}

// BrokerFault says why the gateway's own broker does not listen, and what to set; nil if nothing forbids it.
func (d *Devices) BrokerFault() error { return *d.fault.Load() }

// Handler serves the devices on the gateway's unix socket: how they are, and values that are set there.
func (d *Devices) Handler() http.Handler {
	return override.NewHandler(d.overrides, localView{d.objects(), d.reporter, d.overrides}, d.log.Named("overrides"))
}

// Device returns a Device of this gateway with its model. It implements methodcall.Source.
func (d *Devices) Device(id types.NamespacedName) (*kinds.Device, *kinds.DeviceModel) {
	device, model, _ := d.objects().device(id)
	return device, model
}

// IdentityOf returns who has registered a protocol, "" if nobody has.
func (d *Devices) IdentityOf(protocol string) string {
	if mappers := d.mappers.Load(); mappers != nil {
		return mappers.IdentityOf(protocol)
	}
	return ""
}

func (d *Devices) objects() objects { return objects{node: d.cfg.Node, store: d.cfg.Store, log: d.log} }

// user is an entry of the file of users.
type user struct {
	Name         string   `json:"name"`
	PasswordHash string   `json:"passwordHash"`
	Devices      []string `json:"devices"`
}

// readUsers reads the file of users; "" is none.
func readUsers(file string) ([]broker.User, error) {
	if file == "" {
		return nil, nil
	}
	about, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("devices.mqtt.usersFile: %w", err)
	case about.Size() > maxUsersFile:
		return nil, fmt.Errorf("devices.mqtt.usersFile: %s has %d bytes, at most %d", file, about.Size(), maxUsersFile)
	case about.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("devices.mqtt.usersFile: others may write %s (mode %s): chmod go-w", file, about.Mode().Perm())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("devices.mqtt.usersFile: %w", err)
	}
	var list []user
	if err := yaml.UnmarshalStrict(data, &list); err != nil {
		return nil, fmt.Errorf("devices.mqtt.usersFile: %s: %w", file, err)
	}
	users := make([]broker.User, len(list))
	for i, u := range list {
		users[i] = broker.User{Name: u.Name, PasswordHash: u.PasswordHash}
		for _, device := range u.Devices {
			namespace, name, ok := strings.Cut(device, "/")
			if !ok || namespace == "" || name == "" {
				return nil, fmt.Errorf("devices.mqtt.usersFile: user %q: device %q is not namespace/name", u.Name, device)
			}
			users[i].Devices = append(users[i].Devices, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return users, nil
}

// Start runs until ctx ends and then returns nil.
func (d *Devices) Start(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error {
		d.reporter.start(ctx)
		return nil
	})
	g.Go(func() error { return d.overrides.Start(ctx) })
	d.retry(ctx, func(ctx context.Context) error { return d.run(ctx) })
	return g.Wait()
}

// retry calls run until ctx ends, with growing pauses.
func (d *Devices) retry(ctx context.Context, run func(context.Context) error) {
	fresh := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: time.Minute}
	backoff := fresh
	for ctx.Err() == nil {
		began := now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			backoff = fresh
		}
		pause := backoff.Step()
		d.failures.Inc()
		d.log.Error("the part for devices has ended, starting it again", zap.Duration("after", pause), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// run opens what is stored and runs broker, samples and reports, until one of them fails or ctx ends.
func (d *Devices) run(ctx context.Context) error {
	metrics := prometheus.NewRegistry() // anew for each run
	records, err := recordstore.Open(ctx, recordstore.Twins(), d.cfg.Local, d.log)
	if err != nil {
		return err
	}
	samples, err := d.openSamples(ctx, metrics)
	if err != nil {
		return err
	}
	custom, gate, err := d.openMessages(ctx, metrics)
	if err != nil {
		return err
	}
	other, err := newExternalBroker(d.cfg.Node, d.cfg.Settings.MQTT, gate, metrics, d.log)
	if err != nil {
		return err
	}
	cfg := d.brokerConfig()
	reduced := reduce.New(recorder{samples.store, d.cfg.LowSpace}, d.reporter, metrics)
	cfg.Metrics, cfg.Recorder, cfg.Observer, cfg.Custom = metrics, reduced, reduced, gate
	if other != nil {
		cfg.Peer = other
	}
	server, err := broker.New(cfg, devicetwin.NewTwins(twinRecords{records}, now), d.log)
	if err != nil {
		return err
	}
	mappers, delivered, err := d.newMappers(ctx, server, metrics)
	if err != nil {
		return err
	}
	if err := d.cfg.Metrics.Register(metrics); err != nil { // with all its metrics, so that it can be taken back
		return fmt.Errorf("metrics: %w", err)
	}
	defer d.cfg.Metrics.Unregister(metrics)
	// The stores end after the brokers, which append to them.
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStore()
	var stores errgroup.Group
	samples.start(storeCtx, &stores)
	custom.start(storeCtx, &stores)
	if other != nil {
		if other.server = server; !d.cfg.Settings.MQTT.OwnBroker() {
			other.up = d.up
		}
	}
	err = d.serve(ctx, server, other, mappers, delivered)
	stopStore()
	return errors.Join(err, stores.Wait())
}

// brokerConfig returns the configuration of the broker for one run; it does not listen if there is a fault.
func (d *Devices) brokerConfig() broker.Config {
	cfg := d.broker
	secure, fault := listenerTLS(d.cfg.Settings.MQTT)
	d.fault.Store(&fault)
	if cfg.TLS = secure; fault != nil {
		cfg.PeerOnly = true // mappers, samples and the external broker go on
		d.log.Error("the MQTT broker does not start", zap.Error(fault))
	}
	return cfg
}

// newMappers makes the server of mappers, nil where there shall be none.
func (d *Devices) newMappers(ctx context.Context, twins *broker.Server, metrics prometheus.Registerer) (*dmi.Server, *deliveries, error) {
	settings := d.cfg.Settings.DMI
	if !settings.Enabled {
		return nil, nil, nil
	}
	records, err := recordstore.Open(ctx, recordstore.Mappers(), d.cfg.Local, d.log)
	if err != nil {
		return nil, nil, err
	}
	delivered := newDeliveries(d.log)
	server, err := dmi.New(dmi.Config{
		Dir: settings.Dir, CgroupRoot: d.cfg.CgroupRoot, AllowHost: settings.AllowHost, Registerer: metrics,
	}, twins, authorizer{d.cfg.Store, settings.Mappers}, mapperRecords{records}, delivered, d.log.Named("dmi"))
	return server, delivered, err
}

// serve runs the brokers and the server of mappers, and gives them the Devices.
func (d *Devices) serve(ctx context.Context, server *broker.Server, other *externalBroker, mappers *dmi.Server, delivered *deliveries) error {
	defer d.up.Set(0)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := server.Start(gctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("the MQTT broker has ended")
		}
		return err
	})
	g.Go(func() error {
		select {
		case <-server.Ready():
			if d.cfg.Settings.MQTT.OwnBroker() && d.BrokerFault() == nil {
				d.up.Set(1)
			}
		case <-gctx.Done():
		}
		return nil
	})
	if d.BrokerFault() != nil {
		g.Go(func() error { return awaitListener(gctx, d.cfg.Settings.MQTT) })
	}
	if other != nil {
		g.Go(func() error { return other.start(gctx) })
	}
	f := &follower{objects: d.objects(), consumer: server, overrides: d.overrides, given: map[types.NamespacedName]types.NamespacedName{}}
	if mappers != nil {
		f.mappers = mappers
		d.mappers.Store(mappers)
		defer d.mappers.Store(nil)
		g.Go(func() error { return mappers.Start(gctx) })
		g.Go(func() error {
			delivered.start(gctx, server)
			return nil
		})
	}
	g.Go(func() error {
		for {
			err := f.follow(gctx)
			if gctx.Err() != nil {
				return nil //nolint:nilerr // we were asked to stop
			}
			d.log.Warn("devices not followed, starting again", zap.Error(err))
			select {
			case <-gctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return g.Wait()
}
