package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker/access"
	"github.com/frond-edge/frond/devicetwin/broker/inbound"
	"github.com/frond-edge/frond/devicetwin/broker/intake"
	"github.com/frond-edge/frond/devicetwin/broker/recovery"
	"github.com/frond-edge/frond/devicetwin/broker/serverlog"
	"github.com/frond-edge/frond/devicetwin/broker/sessions"
)

// ErrNotRunning reports that the broker has not started or has ended.
var ErrNotRunning = errors.New("the MQTT broker is not running")

const (
	dirMode = 0o700
	// startTimeout limits the recovery of the streams.
	startTimeout = time.Minute
	// messagesStream is nats-server's stream of them, with its name.
	messagesStream = "$MQTT_msgs"
	// maxBatch is how many messages are stored with one sync.
	maxBatch = 256
	// flowDelay is how long values of class flow wait to be stored in the twins, as samples do (streams/telemetry).
	flowDelay = 500 * time.Millisecond
	// requestTimeout limits one request to the broker's JetStream.
	requestTimeout = 5 * time.Second
)

// Message is a message of an app, or to apps.
type Message struct {
	Topic   string
	Payload []byte
	// Received is when the broker took it. It is not used for messages to apps.
	Received devicetwin.Reception
}

// Server is the broker with its bridge to the twins. Create it with New and call Start once.
type Server struct {
	cfg     Config
	bridge  *bridge
	log     *zap.Logger
	metrics *metrics
	ready   chan struct{}
	// open: clients may connect and messages are handled. openOnce sets it and closes ready.
	open     atomic.Bool
	openOnce sync.Once
	// changes of Devices are made by the goroutine that handles messages.
	changes chan change
	// reports of mappers are handled with the messages.
	reports chan received

	mu   sync.Mutex // guards all below
	addr string
	js   jetstream.JetStream
}

// New checks the configuration. It starts and opens nothing. The twins are the server's alone from then on; Start loads them.
func New(cfg Config, twins *devicetwin.Twins, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("MQTT broker: %w", err)
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s := &Server{cfg: cfg.withDefaults(), log: log.Named("mqtt"), metrics: m, ready: make(chan struct{}), changes: make(chan change), reports: make(chan received)}
	s.bridge = &bridge{
		node: cfg.Node, twins: twins, apps: s, now: time.Now, log: s.log, metrics: m, limits: map[types.NamespacedName]*rate.Limiter{}, rate: deviceRate, burst: deviceBurst, recorder: cfg.Recorder, observer: cfg.Observer, refusing: rate.Sometimes{Interval: refusalInterval},
	}
	return s, nil
}

// Ready closes when clients may connect, which is after DevicesLoaded.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr returns the address on which the broker listens, after Ready.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Start runs the broker until ctx ends. Clients wait for DevicesLoaded. An error means that it could not listen or keep its store.
func (s *Server) Start(ctx context.Context) error {
	if s.cfg.PeerOnly {
		return stopped(ctx, s.servePeer(ctx))
	}
	if err := os.MkdirAll(s.cfg.Dir, dirMode); err != nil {
		return fmt.Errorf("folder of the MQTT broker: %w", err)
	}
	if err := s.files().Restore(); err != nil {
		return err
	}
	auth := &access.Authenticator{
		Users: map[string]User{}, Anonymous: s.cfg.AllowAnonymous, Secret: rand.Text(), Open: &s.open, Refused: s.metrics.refused.WithLabelValues("login"),
	}
	for _, u := range s.cfg.Users {
		auth.Users[u.Name] = u
	}
	opts, err := options(s.cfg, auth)
	if err != nil {
		return err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("make the MQTT broker: %w", err)
	}
	auth.ClientID, auth.Resuming = clientIDs(ns), s.checkSession(ctx)
	logger := serverlog.New(s.log, s.metrics.errors)
	ns.SetLoggerV2(logger, false, false, false)
	ns.Start() // does not block without a listener for NATS
	defer func() {
		s.set("", nil)
		ns.Shutdown()
		ns.WaitForShutdown()
	}()
	if err := awaitStart(ctx, ns, logger.Fatal()); err != nil {
		return stopped(ctx, err)
	}
	return stopped(ctx, s.serve(ctx, ns, opts, auth.Secret, auth.Users, logger.Fatal()))
}

// stopped returns nil if we were asked to stop.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // we were asked to stop
	}
	return err
}

func awaitStart(ctx context.Context, ns *server.Server, fatal <-chan error) error {
	const slice = 50 * time.Millisecond // ReadyForConnections polls, short calls let ctx end the wait
	for end := time.Now().Add(startTimeout); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-fatal:
			return err
		default:
		}
		if ns.ReadyForConnections(slice) && ns.JetStreamEnabled() {
			return nil
		}
	}
	return fmt.Errorf("the MQTT broker did not start in %v", startTimeout)
}

// clientIDs returns a function that finds the MQTT client id of a connection.
func clientIDs(ns *server.Server) func(uint64) string {
	return func(connection uint64) string {
		found, err := ns.Connz(&server.ConnzOptions{CID: connection})
		if err != nil || len(found.Conns) != 1 {
			return ""
		}
		return found.Conns[0].MQTTClient
	}
}

// serve handles messages until ctx ends.
func (s *Server) serve(ctx context.Context, ns *server.Server, opts *server.Options, secret string, users map[string]User, fatal <-chan error) error {
	nc, err := nats.Connect("", nats.Name("devicetwin"), nats.InProcessServer(ns), nats.UserInfo(access.OwnUser, secret), nats.NoReconnect(),
		nats.ErrorHandler(s.countOverflow))
	if err != nil {
		return fmt.Errorf("connect to the MQTT broker: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return fmt.Errorf("connect to the MQTT broker's JetStream: %w", err)
	}
	if err := s.load(ctx); err != nil {
		return err
	}
	if err := s.prepare(ctx, js); err != nil {
		return err
	}
	queue, err := inbound.New(nc, inbound.Config{StorePrefix: stored, LocalPrefix: intake.LocalPrefix, Timeout: storeTimeout, Refused: s.metrics.refused.WithLabelValues("busy")})
	if err != nil {
		return err
	}
	unstored := make(chan *nats.Msg, 4*maxBatch) // QoS 0: a burst; more is dropped and counted
	for _, subject := range access.Inbound() {
		if _, err := nc.ChanSubscribe(subject, unstored); err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	var custom *intake.Intake
	if s.cfg.Custom != nil {
		if custom, err = intake.New(nc, s.cfg.Custom, users, stored, qosHeader); err != nil {
			return err
		}
	}
	if err := nc.FlushTimeout(requestTimeout); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	s.set(net.JoinHostPort(opts.MQTT.Host, strconv.Itoa(opts.MQTT.Port)), js)
	in := make(chan received, maxBatch) // the next batch gathers while one is handled
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case err := <-fatal:
			return err
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error { return receiveStored(gctx, queue, in) })
	g.Go(func() error { return receiveUnstored(gctx, unstored, in) })
	g.Go(func() error { return s.handle(gctx, in) })
	if custom != nil {
		g.Go(func() error { return custom.Start(gctx) })
	}
	return g.Wait()
}

// servePeer handles the messages of a peer's apps until ctx ends.
func (s *Server) servePeer(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	return s.handle(ctx, nil)
}

// load loads the twins.
func (s *Server) load(ctx context.Context) error {
	err := s.bridge.twins.Load(ctx)
	if errors.Is(err, devicetwin.ErrDamaged) {
		s.log.Error("the values of devices are lost until they report again", zap.Error(err))
		return nil
	}
	return err
}

// Receive takes a message of a peer's app and returns; it waits while too many are being handled. ack is called when the message is answered.
func (s *Server) Receive(ctx context.Context, m Message, ack func()) error {
	r := received{message: m, ack: func() error {
		ack()
		return nil
	}}
	select {
	case s.reports <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prepare makes the streams, before any client has connected.
func (s *Server) prepare(ctx context.Context, js jetstream.JetStream) error {
	lost, err := inbound.RemoveConsumer(ctx, js, messagesStream)
	if err != nil {
		return err
	}
	if lost > 0 {
		s.log.Warn("messages that a version before has not handled are dropped", zap.Uint64("messages", lost))
	}
	_, _, err = s.files().Prepare(ctx, js, streams(s.cfg), jetstream.ConsumerConfig{}, func(string) uint64 { return 0 })
	return err
}

// files are those of the broker's folder.
func (s *Server) files() recovery.Files {
	return recovery.Files{Dir: s.cfg.Dir, Stream: messagesStream, Log: s.log}
}

// checkSession returns what is done before nats-server resumes the session of a client.
func (s *Server) checkSession(ctx context.Context) func(clientID string) {
	return func(clientID string) {
		s.mu.Lock()
		js := s.js
		s.mu.Unlock()
		if js == nil {
			return
		}
		if err := sessions.NewChecker(js, s.log).Check(ctx, clientID); err != nil && ctx.Err() == nil {
			s.log.Warn("MQTT session not checked", zap.Error(err))
		}
	}
}

func (s *Server) set(addr string, js jetstream.JetStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.js = addr, js
}

// Publish sends messages to the apps that subscribe, the peer's too, as the gateway does with QoS 1. It returns when the broker has them in its stream for those
// that subscribe with QoS 1, also for sessions that are away.
func (s *Server) Publish(ctx context.Context, messages ...Message) error {
	var errs []error
	if s.cfg.Peer != nil {
		errs = append(errs, s.cfg.Peer.Publish(ctx, messages...))
	}
	if s.cfg.PeerOnly {
		return errors.Join(errs...)
	}
	s.mu.Lock()
	js := s.js
	s.mu.Unlock()
	if js == nil {
		return errors.Join(append(errs, ErrNotRunning)...)
	}
	var futures []jetstream.PubAckFuture
	for _, m := range messages {
		// nats-server sends the first to subscriptions of QoS 0, the second to those of QoS 1.
		out := &nats.Msg{Subject: access.SubjectOf(m.Topic), Header: nats.Header{qosHeader: {"1"}}, Data: m.Payload}
		future, err := js.PublishMsgAsync(&nats.Msg{Subject: intake.LocalPrefix + out.Subject, Header: out.Header, Data: m.Payload})
		if err = errors.Join(err, js.Conn().PublishMsg(out)); err != nil {
			errs = append(errs, fmt.Errorf("publish %s: %w", m.Topic, err))
			continue
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			errs = append(errs, fmt.Errorf("store %s for subscribers: %w", future.Msg().Subject, err))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// change is a change of the Devices.
type change struct {
	apply func(ctx context.Context) error
	done  chan error // has room for the one answer
}

// SetDevice takes a Device of the gateway that came or changed, stores its desired values and tells the apps: membership, and a delta if the device
// reports other values. It waits until the broker runs. After an error the device is known, and its record is stored with the next change.
func (s *Server) SetDevice(ctx context.Context, spec devicetwin.Spec) error {
	return s.change(ctx, func(ctx context.Context) error { return s.bridge.setDevice(ctx, spec) })
}

// RemoveDevice forgets a device and its record, and tells the apps.
func (s *Server) RemoveDevice(ctx context.Context, id types.NamespacedName) error {
	return s.change(ctx, func(ctx context.Context) error { return s.bridge.removeDevice(ctx, id) })
}

// DevicesLoaded says that SetDevice was called for all Devices that the gateway knows at its start. Before, no client may connect and no message is
// handled: devices would be unknown that exist. The records of Devices that were removed while the gateway was off are forgotten.
func (s *Server) DevicesLoaded(ctx context.Context) error {
	return s.change(ctx, func(ctx context.Context) error {
		if err := s.bridge.removeOrphans(ctx); err != nil {
			return err
		}
		s.openOnce.Do(func() {
			s.open.Store(true)
			close(s.ready)
			s.log.Info("MQTT broker ready", zap.String("address", s.Addr()))
		})
		return nil
	})
}

func (s *Server) change(ctx context.Context, apply func(context.Context) error) error {
	c := change{apply: apply, done: make(chan error, 1)}
	select {
	case s.changes <- c:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
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
