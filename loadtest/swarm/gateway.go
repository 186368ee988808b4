package swarm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/minileaf"
	"github.com/frond-edge/frond/loadtest/swarm/enrolment"
	"github.com/frond-edge/frond/loadtest/swarm/memstore"
	"github.com/frond-edge/frond/loadtest/swarm/podstate"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/outbox/memory"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// statusInterval is how often a kubelet refreshes an unchanged Node, and edgecore its scopes.
	statusInterval = 5 * time.Minute
	// enrolPause is the longest pause between two attempts to enrol.
	enrolPause = 15 * time.Second
	// renewPause is the pause after a renewal that failed.
	renewPause = time.Minute
)

// Gateway is one simulated gateway.
type Gateway struct {
	name string
	// address is that of the Node.
	address  string
	swarm    *Swarm
	identity *enrolment.Identity
	store    *memstore.Store
	box      *memory.Outbox
	leaf     *minileaf.Leaf
	// joined closes when the Node, which the cloud has created, is in the store.
	joined   chan struct{}
	joinOnce func()
	// onJoined is told of it; set before the gateway runs.
	onJoined func(at time.Time)

	mu      sync.Mutex // guards all fields below
	nodeUID string
	pods    map[wire.Key]podstate.Pod
}

func newGateway(s *Swarm, index int) (*Gateway, error) {
	g := &Gateway{name: s.cfg.NodeName(index), address: nodeAddress(index), swarm: s, joined: make(chan struct{}), pods: map[wire.Key]podstate.Pod{}}
	g.joinOnce = sync.OnceFunc(func() {
		close(g.joined)
		s.joined.Add(1)
		if g.onJoined != nil {
			g.onJoined(time.Now())
		}
	})
	epoch := rand.Text()
	var err error
	if g.identity, err = enrolment.New(g.name, s.cfg.Token); err != nil {
		return nil, err
	}
	g.store, g.box = memstore.New(epoch, g.observe), memory.New(g.name, epoch, s.codec)
	escaped := wire.Escape(g.name)
	g.leaf = minileaf.New(minileaf.Config{
		Name: g.name, Domain: escaped, Address: s.nextHub, TLS: s.tls, Credential: g.identity.Credential, Counters: s.counters,
		// What edgecore's leaf has: the client's inboxes, the commands, the tunnels.
		Subscribe: []string{subject.InboxPrefix(g.name) + ".>", subject.CommandSubject(g.name, "*"), s.tunnels(g.name)},
	}, s.log.Named("leaf"))
	return g, nil
}

// Name returns the name of the gateway's Node.
func (g *Gateway) Name() string { return g.name }

// Key returns the public key of the gateway.
func (g *Gateway) Key() string { return g.identity.Key() }

// Store returns the gateway's store.
func (g *Gateway) Store() *memstore.Store { return g.store }

// Joined closes when the cloud knows the gateway's Node, and the gateway knows that.
func (g *Gateway) Joined() <-chan struct{} { return g.joined }

// OnJoined sets what is called once the gateway has joined; Join's callback may call it.
func (g *Gateway) OnJoined(call func(at time.Time)) { g.onJoined = call }

// LinkedSince returns when the link was made; zero without one.
func (g *Gateway) LinkedSince() time.Time { return g.leaf.LinkedSince() }

// SetCut cuts the gateway's link, or lets it be dialled again.
func (g *Gateway) SetCut(cut bool) { g.leaf.SetCut(cut) }

// Redial closes the gateway's link; another one is dialled as after any lost link.
func (g *Gateway) Redial() { g.leaf.Redial() }

// Linked reports whether the gateway has a link.
func (g *Gateway) Linked() bool {
	up, _ := g.leaf.State()
	return up
}

// run enrols the gateway and runs it until ctx ends. It returns an error if the gateway can never join.
func (g *Gateway) run(ctx context.Context) error {
	if err := g.enrol(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	nc, err := g.leaf.Connect(subject.InboxPrefix(g.name), g.swarm.recordClientError)
	if err != nil {
		return err
	}
	defer nc.Close()
	starts, err := g.assemble(nc)
	if err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	for _, start := range starts {
		group.Go(func() error { return start(gctx) })
	}
	return group.Wait()
}

// assemble creates edgecore's parts of this gateway, over memory instead of a disk.
func (g *Gateway) assemble(nc *nats.Conn) ([]func(context.Context) error, error) {
	s := g.swarm
	gate := link.NewFencedLink(g.leaf, s.log.Named("gate"))
	delivery, err := deliver.NewDelivery(deliver.Config{Node: g.name, OnRedialMax: g.attached, Codec: s.deliveryCodec}, nc, g.store, gate, s.metrics, s.log.Named("delivery"))
	if err != nil {
		return nil, err
	}
	pump, err := outbox.NewPumpOf(subject.Report, g.box, nc, gate, s.metrics, s.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	beater := call.NewHeartbeater(g.name, nc, func(census bool) wire.Heartbeat {
		instance, since := delivery.Identity()
		cursor, inventory := g.store.Inventory()
		beat := wire.Heartbeat{
			Cursor: cursor, Outbox: pump.Waiting(), Healthy: true, Version: s.cfg.Version, Instance: instance, Since: since.Milliseconds(), Fenced: gate.Fenced(),
		}
		if census {
			beat.Inventory = &inventory
		}
		return beat
	}, s.log.Named("beat"))
	commands := call.NewCommandListener(g.name, nc, map[string]func([]byte){
		call.VerbResync:  func([]byte) { delivery.Resync() },
		call.VerbDied:    func(server []byte) { delivery.ServerDied(string(server)) },
		call.VerbReports: func([]byte) { g.reportAll() },
		call.VerbReport:  g.reportKey,
		call.VerbWho:     beater.AnswerProbe,
		call.VerbFence: func(instance []byte) {
			if own, _ := delivery.Identity(); own == string(instance) {
				gate.Fence(link.FenceDuration)
			}
		},
	}, s.metrics, s.log.Named("commands"))
	return []func(context.Context) error{
		g.leaf.Start, gate.Start, delivery.Start, pump.Start, beater.Start, commands.Start,
		func(ctx context.Context) error { return g.supervise(ctx, nc, gate) },
	}, nil
}

// attached takes what the cloud says with each attach.
func (g *Gateway) attached(redialMax time.Duration) {
	g.swarm.attaches.Add(1)
	g.leaf.SetRedialMax(redialMax)
}

// enrol tries over one link in the lobby until the cloud has recorded the gateway's key or refused it. A link that is lost is dialled again,
// and may then end in the node's own cell. Its subscriptions are those of both; the hub says which of them it has.
func (g *Gateway) enrol(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, key := g.swarm, g.identity.Key()
	lobby := minileaf.New(minileaf.Config{
		Name: g.name, Domain: wire.Escape(g.name), Address: s.nextHub, TLS: s.tls, Credential: g.identity.Credential, Counters: s.lobby,
		Subscribe: []string{subject.InboxPrefix(key) + ".>", subject.InboxPrefix(g.name) + ".>"},
	}, s.log.Named("lobby"))
	nc, err := lobby.Connect(subject.InboxPrefix(key), s.recordClientError)
	if err != nil {
		return err
	}
	defer nc.Close()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return lobby.Start(gctx) })
	group.Go(func() error {
		defer cancel()
		return g.enrolOver(gctx, lobby, nc)
	})
	return group.Wait()
}

// enrolOver asks again and again whenever there is a link. Its only errors are refusals.
func (g *Gateway) enrolOver(ctx context.Context, lobby *minileaf.Leaf, nc *nats.Conn) error {
	for pause := time.Second; ctx.Err() == nil; {
		up, changed := lobby.State()
		if !up {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		err := g.identity.Enrol(ctx, nc, lobby.Nonce)
		if err == nil {
			return nil
		}
		if refused, final := errors.AsType[*enrolment.RefusedError](err); final {
			return fmt.Errorf("%s: %w", g.name, refused)
		}
		g.swarm.log.Info("not enrolled yet", zap.String("node", g.name), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-changed: // another link, perhaps in another cell
		case <-time.After(jitter(pause)): // as edgecore
		}
		pause = min(2*pause, enrolPause)
	}
	return nil
}

// observe takes what the delivery has stored.
func (g *Gateway) observe(applied []wire.Message, gone []wire.Key) {
	now := time.Now()
	for _, m := range applied {
		switch {
		case m.Key.Group == "" && m.Key.Resource == "nodes" && m.Key.Name == g.name && m.Op == wire.Apply:
			g.mu.Lock()
			g.nodeUID = m.UID
			g.mu.Unlock()
			g.joinOnce()
		case m.Key.Group == "" && m.Key.Resource == "pods":
			g.observePod(m, now)
		}
		if g.swarm.cfg.OnApplied != nil {
			g.swarm.cfg.OnApplied(g.name, m, now)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range gone {
		delete(g.pods, key)
	}
}

// observePod runs or ends a pod.
func (g *Gateway) observePod(m wire.Message, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.Op == wire.Delete {
		delete(g.pods, m.Key)
		return
	}
	before, known := g.pods[m.Key]
	started := now
	if known && before.UID == m.UID {
		started = before.Started
	}
	pod, err := podstate.Parse(m.Object, started)
	if err != nil {
		g.swarm.recordFault(g.name, err)
		return
	}
	pod.Key, pod.UID = m.Key, m.UID
	g.pods[m.Key] = pod
	if known && before.UID == pod.UID && before.Deleted == pod.Deleted {
		return // it runs, or has ended
	}
	g.report(pod.Report(g.address, now))
}

// report puts a report into the outbox.
func (g *Gateway) report(m wire.Message, err error) {
	if err == nil {
		err = g.box.Report(m)
	}
	if err != nil {
		g.swarm.recordFault(g.name, err)
	}
}

// reportNode reports the Node: the first report creates it.
func (g *Gateway) reportNode() {
	g.mu.Lock()
	uid := g.nodeUID
	g.mu.Unlock()
	g.report(g.swarm.nodeReport(g.name, g.address, uid, time.Now()))
}

// reportAll reports the Node and all pods.
func (g *Gateway) reportAll() {
	g.reportNode()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, pod := range g.pods {
		g.report(pod.Report(g.address, time.Now()))
	}
}

// reportKey reports one object, as the cloud has ordered.
func (g *Gateway) reportKey(payload []byte) {
	key, err := wire.ParseKey(string(payload))
	if err != nil {
		g.swarm.recordFault(g.name, err)
		return
	}
	if key.Group == "" && key.Resource == "nodes" {
		g.reportNode()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if pod, held := g.pods[key]; held {
		g.report(pod.Report(g.address, time.Now()))
	}
}

// supervise reports what a new link or a kubelet's period demands, and renews the key.
func (g *Gateway) supervise(ctx context.Context, nc *nats.Conn, gate *link.FencedLink) error {
	var reported <-chan struct{} // that of the link over which all was reported
	period := time.NewTimer(jitter(statusInterval))
	defer period.Stop()
	renew := time.NewTimer(time.Until(g.identity.RenewAt()))
	defer renew.Stop()
	for {
		up, changed := gate.State()
		if up && reported != changed {
			reported = changed
			g.reportNode()
			g.sendScopes(ctx, nc)
			g.reportChanged(ctx, nc)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-period.C:
			period.Reset(jitter(statusInterval))
			g.reportNode()
			if up {
				g.sendScopes(ctx, nc)
			}
		case <-renew.C:
			renew.Reset(g.renew(ctx, nc, up))
		}
	}
}

// renew renews the key, and returns when to do that next.
func (g *Gateway) renew(ctx context.Context, nc *nats.Conn, up bool) time.Duration {
	if !up {
		return renewPause
	}
	carried, err := g.identity.Renew(ctx, nc, g.leaf.Nonce())
	if err != nil {
		if ctx.Err() == nil {
			g.swarm.log.Warn("key not renewed", zap.String("node", g.name), zap.Error(err))
		}
		return renewPause
	}
	if !carried {
		g.leaf.Redial()
	}
	return time.Until(g.identity.RenewAt())
}

// sendScopes says that no component here lists or watches anything, as an edgecore without kube-proxy says.
func (g *Gateway) sendScopes(ctx context.Context, nc *nats.Conn) {
	if g.swarm.cfg.AllServices {
		return
	}
	var reply wire.ScopesReply
	err := call.Call(ctx, nc, g.name, subject.VerbScopes, wire.ScopesRequest{Order: 1, ServicesByNeed: true}, &reply)
	if err != nil && ctx.Err() == nil {
		g.swarm.log.Info("scopes not sent", zap.String("node", g.name), zap.Error(err))
	}
}

// reportChanged reports the pods whose status Kubernetes does not hold, after a link was lost.
func (g *Gateway) reportChanged(ctx context.Context, nc *nats.Conn) {
	var keys []wire.Key
	var request wire.SameRequest
	g.mu.Lock()
	for key, pod := range g.pods {
		digest, err := pod.Digest(g.address)
		if err == nil && !pod.Deleted && len(request.Pods) < wire.MaxPodDigests {
			keys, request.Pods = append(keys, key), append(request.Pods, digest)
		}
	}
	g.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	var reply wire.SameReply
	if err := call.Call(ctx, nc, g.name, subject.VerbSame, request, &reply); err != nil || reply.Error != "" {
		g.reportAll()
		return
	}
	same := map[wire.Key]bool{}
	for _, i := range reply.Same {
		if i >= 0 && i < len(keys) {
			same[keys[i]] = true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, pod := range g.pods {
		if !same[key] {
			g.report(pod.Report(g.address, time.Now()))
		}
	}
}

// jitter takes up to 40 % off.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.6 + 0.4*mathrand.Float64())) //nolint:mnd // as said
}

// marshalNode returns the report of a Node.
func marshalNode(node *corev1.Node, uid string, now time.Time) (wire.Message, error) {
	m := wire.Message{Key: wire.Key{Resource: "nodes", Name: node.Name}, Op: wire.Apply, UID: uid, Time: now}
	var err error
	if m.Object, err = json.Marshal(node); err != nil {
		return m, fmt.Errorf("report Node %s: %w", node.Name, err)
	}
	return m, nil
}
