package enrol

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/crash"
	"github.com/frond-edge/frond/leaf"
)

// Config says who the gateway wants to be, and how it finds the cloud.
type Config struct {
	// Node is the name of its Kubernetes Node.
	Node string
	// Dir is the folder of the identity.
	Dir string
	// Hub are the hub's leaf listeners, until the cloud names others.
	Hub []string
	// Token is what it joins with, or TokenFile holds it; both may be empty for a gateway that is enrolled.
	Token, TokenFile string
	// CAHashes are those of the hub's CA, one or more, "sha256:" and the hash of the public key; needed with a token.
	CAHashes []string
	// Proxy finds the HTTP proxy to a hub; nil is none.
	Proxy func(hub *url.URL) (*url.URL, error)
	// Wall is the machine's clock; nil is time.Now.
	Wall func() time.Time
	// Once makes Start end with the reason when the cloud refuses the gateway, instead of asking again.
	Once bool
	// Metrics takes the metrics; nil drops them.
	Metrics prometheus.Registerer
}

// Link is the leaf that the gateway is linked by.
type Link interface {
	WatchLink() (leaf.LinkState, <-chan struct{})
	Problem() error
	Redial()
	Conn(name string, opts ...nats.Option) (*nats.Conn, error)
}

// Keeper keeps a gateway's identity.
type Keeper struct {
	cfg     Config
	log     *zap.Logger
	metrics *metrics
	clock   *clock
	// enrolled closes when there is a record.
	enrolled chan struct{}

	mu     sync.Mutex // guards all below
	folder *folder
	// shown is the key of the last connection, dials how many there were since the last link.
	shown *key
	dials int

	// Of Start alone:
	link    Link
	nc      *nats.Conn
	said    string
	tries   patience
	settled time.Time // the link's Since when it was found to be the node's own
	after   time.Time // who is due waits until then; zero while it is not due
	floored time.Time // when the known time was last written
}

// New reads the folder, or makes it. It asks nobody.
func New(cfg Config, log *zap.Logger) (*Keeper, error) {
	f, err := open(cfg.Dir, cfg.Node)
	if err != nil {
		return nil, err
	}
	var floor struct {
		Floor time.Time `json:"floor"`
	}
	if err := f.readJSON(clockFile, &floor); err != nil {
		log.Warn("the last known time is lost, the machine's clock is believed", zap.Error(err))
	}
	k := &Keeper{cfg: cfg, log: log.Named("enrol"), folder: f, clock: newClock(cfg.Wall, floor.Floor), enrolled: make(chan struct{})}
	if k.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if f.record.Key != "" {
		k.metrics.expires.Set(float64(f.record.Expires.Unix()))
		close(k.enrolled)
	}
	return k, nil
}

// Enrolled closes when the cloud has recorded this gateway.
func (k *Keeper) Enrolled() <-chan struct{} { return k.enrolled }

// Record is what the cloud said last; zero before it has.
func (k *Keeper) Record() Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.folder.record
}

// HubCA and ClusterCA are the files of the CAs; before the enrolment they do not exist.
func (k *Keeper) HubCA() string { return k.folder.path(hubCAFile) }

// ClusterCA is the file with the CAs of the Kubernetes cluster.
func (k *Keeper) ClusterCA() string { return k.folder.path(clusterCAFile) }

// Hubs are the hub's leaf listeners.
func (k *Keeper) Hubs() []string {
	if known := k.Record().HubURLs; len(known) > 0 {
		return known
	}
	return k.cfg.Hub
}

// Now is the time as the cloud has it, as far as is known.
func (k *Keeper) Now() time.Time {
	now, _ := k.clock.now()
	return now
}

// Credential answers a hub's nonce, for leaf.Config.
func (k *Keeper) Credential(nonce []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.folder
	if f.current == nil {
		return nil, errors.New("this gateway has no key yet")
	}
	k.shown = f.current
	// The hub may know the old key only, when the cloud has lost what it answered.
	const patient = 3
	if f.old != nil && k.dials >= patient && k.dials%2 == 1 {
		k.shown = f.old
	}
	k.dials++
	c := identity.Credential{Node: k.cfg.Node, Key: k.shown.public}
	if f.record.Key == "" {
		token, err := k.token()
		if err != nil {
			return nil, err
		}
		c.Token = token
	}
	signature, err := k.shown.Sign(nonce)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's nonce: %w", err)
	}
	return identity.Show(c, signature)
}

func (k *Keeper) token() (string, error) {
	if k.cfg.Token != "" || k.cfg.TokenFile == "" {
		return k.cfg.Token, nil
	}
	data, err := os.ReadFile(k.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return string(bytes.TrimSpace(data)), nil
}

// Start keeps the identity until ctx ends, then returns nil. The leaf is ready, and asks this keeper for its credential, its
// hubs and the time. With Config.Once it returns why this gateway is not let in.
func (k *Keeper) Start(ctx context.Context, link Link) error {
	nc, err := link.Conn("identity")
	if err != nil {
		return err
	}
	defer nc.Close()
	k.link, k.nc = link, nc
	for {
		state, changed := link.WatchLink()
		wait, err := k.step(ctx, state)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// idle is how often a keeper with nothing to do looks again.
const idle = time.Minute

// step does what is to be done now, and returns when to look again at the latest.
func (k *Keeper) step(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	k.remember()
	select {
	case <-k.enrolled:
	default:
		return k.join(ctx, state)
	}
	if !state.Up {
		return k.away(ctx), nil
	}
	if k.settled != state.Since {
		return k.settle(ctx, state), nil
	}
	return k.renewInTime(ctx), nil
}

// remember writes down now and then how late it is.
func (k *Keeper) remember() {
	known := k.clock.known()
	if known.IsZero() || known.Sub(k.floored) < floorEvery {
		return
	}
	k.floored = known
	if err := k.folder.writeJSON(clockFile, map[string]time.Time{"floor": known}); err != nil {
		k.log.Warn("the known time is not written down", zap.Error(err))
	}
}

// say tells a person once.
func (k *Keeper) say(message string, err error) {
	if text := message + err.Error(); text != k.said {
		k.said = text
		k.log.Warn(message, zap.Error(err))
	}
}

// join makes the key, finds the CA and asks to be recorded.
func (k *Keeper) join(ctx context.Context, state leaf.LinkState) (time.Duration, error) {
	if err := k.makeKey(); err != nil {
		return 0, err
	}
	crash.At("enrol.key")
	known, err := k.trusts()
	if err != nil {
		return 0, err
	}
	if !known {
		if err := k.pin(ctx); err != nil {
			k.say("the hub's CA is not found yet", err)
			return k.tries.wait(), k.once(isFinal(err), err)
		}
		crash.At("enrol.pinned")
		k.tries.reset()
		k.log.Info("the hub's CA has the hash that was given")
		k.link.Redial()
	}
	if !state.Up {
		return k.outside(ctx)
	}
	answer, err := k.enrol(ctx)
	if err != nil {
		k.say("no answer to the enrolment yet", err)
		return k.tries.wait(), nil
	}
	if answer.Reason != "" {
		err := &RefusedError{Reason: answer.Reason}
		k.say("the cloud does not take this gateway", err)
		return k.tries.wait(), k.once(true, err)
	}
	crash.At("enrol.answered")
	if err := k.accept(answer, k.folder.current.public); err != nil {
		return 0, err
	}
	k.tries.reset()
	k.log.Info("enrolled", zap.String("node", k.cfg.Node), zap.String("key", k.folder.current.public), zap.Time("expires", answer.Expires))
	close(k.enrolled)
	k.link.Redial()
	return idle, nil
}

func (k *Keeper) once(final bool, err error) error {
	if final && k.cfg.Once {
		return err
	}
	return nil
}

func (k *Keeper) makeKey() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.folder.current != nil {
		return nil
	}
	made, err := k.folder.fresh(seedFile)
	k.folder.current = made
	return err
}

// trusts tells whether the CA of an earlier try is here, and is one that is meant.
func (k *Keeper) trusts() (bool, error) {
	data, err := os.ReadFile(k.HubCA())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the hub's CA: %w", err)
	}
	certs, err := parse(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.HubCA(), err)
	}
	_, err = pinned(certs, "the hub of an earlier try", k.cfg.CAHashes)
	return err == nil, nil //nolint:nilerr // another hash was given since: it is looked for again
}

// pin finds the CA among what the hubs show, and writes it down.
func (k *Keeper) pin(ctx context.Context) error {
	if err := os.Remove(k.HubCA()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the CA of an earlier try: %w", err)
	}
	var faults []error
	for _, hub := range k.Hubs() {
		chain, err := look(ctx, hub, k.cfg.Proxy)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		ca, err := pinned(chain, hub, k.cfg.CAHashes)
		if err != nil {
			return err
		}
		if err := k.judge(chain, pool(encode(ca)), hub); err != nil {
			return err
		}
		return k.folder.write(hubCAFile, encode(ca))
	}
	return errors.Join(faults...)
}

// judge sees whether a hub's chain is good by what is known of the time, and learns from it how late it is at least.
func (k *Keeper) judge(chain []*x509.Certificate, roots *x509.CertPool, hub string) error {
	now, doubtful := k.clock.now()
	at, err := timeFor(chain, roots, hub, now, doubtful)
	if err != nil {
		return err
	}
	if at.After(now) {
		k.log.Warn("the clock is behind the hub's certificate, whose time is taken instead",
			zap.Time("clock", k.clock.machine()), zap.Time("taken", at))
		k.clock.atLeast(chain[0].NotBefore)
		k.clock.assume(at)
	}
	return nil
}

// refusals is after how many connections that were refused a gateway with a token believes it: a cloudcore may not know a new token
// for a moment, or there may be none to judge.
const refusals = 3

// outside says why there is no link to ask over.
func (k *Keeper) outside(ctx context.Context) (time.Duration, error) {
	k.mu.Lock()
	dials := k.dials
	k.mu.Unlock()
	err := k.link.Problem()
	switch {
	case errors.Is(err, leaf.ErrRefused):
		if dials < refusals {
			return retryFirst, nil
		}
		err = &RefusedError{Reason: "its token is unknown, expired, used up or for another node, or a node of this name joined with another key, " +
			"or no cloudcore is there to judge. Make another token with frond token create --node " + k.cfg.Node}
		k.say("the hub does not let this gateway in", err)
		return k.tries.wait(), k.once(true, err)
	case err != nil:
		k.say("no link to the hub yet", err)
	}
	return min(k.away(ctx), retryFirst), nil
}

// away looks, while there is no link and the machine's clock is not plausible, what time the hub's certificate needs.
func (k *Keeper) away(ctx context.Context) time.Duration {
	if _, doubtful := k.clock.now(); !doubtful {
		return idle
	}
	roots, err := readPool(k.HubCA())
	if err != nil {
		return k.tries.wait() // the leaf says so
	}
	for _, hub := range k.Hubs() {
		chain, err := look(ctx, hub, k.cfg.Proxy)
		if err != nil {
			continue
		}
		if err := k.judge(chain, roots, hub); err != nil {
			k.say("the hub cannot be trusted at this time", err)
			continue
		}
		k.link.Redial()
		break
	}
	return k.tries.wait()
}

// settle finds out, once for each link, where it leads: to the node's own cell, or, for a key that the cloud calls expired,
// to the lobby, where it may be renewed.
func (k *Keeper) settle(ctx context.Context, state leaf.LinkState) time.Duration {
	if err := k.ping(ctx); err == nil {
		k.settled = state.Since
		k.tries.reset()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.dials = 0
		f := k.folder
		switch {
		case f.old == nil:
		case k.shown == f.old:
			k.log.Warn("the hub knows this gateway's old key only, going back to it and renewing again")
			err = f.revert()
		default:
			err = f.forgetOld()
		}
		if err != nil {
			k.say("old key not put away", err)
		}
		return 0
	}
	answer, err := k.renewAs(ctx, lobby, k.Record().Key)
	switch {
	case err != nil:
		k.say("the link is up, but nobody answers there", err)
	case answer.Reason != "":
		k.metrics.renewals.WithLabelValues("refused").Inc()
		k.say("this gateway's key has expired and is not renewed", &RefusedError{Reason: answer.Reason})
	default:
		if err := k.accept(answer, k.Record().Key); err != nil {
			k.say("renewed key not written down", err)
			break
		}
		k.metrics.renewals.WithLabelValues("renewed").Inc()
		k.log.Info("key renewed after it had expired", zap.Time("expires", answer.Expires))
		k.tries.reset()
		k.link.Redial()
		return idle
	}
	return k.tries.wait()
}

// renewInTime changes the key when most of its life is over.
func (k *Keeper) renewInTime(ctx context.Context) time.Duration {
	r := k.Record()
	now := k.Now()
	if left := renewAt(r).Sub(now); left > 0 {
		k.after = time.Time{}
		return min(left, idle)
	}
	if k.after.IsZero() {
		k.after = time.Now().Add(time.Duration(rand.Float64() * float64(spread(r))))
	}
	if left := time.Until(k.after); left > 0 {
		return left
	}
	if err := k.renew(ctx); err != nil {
		result := "failed"
		if _, refused := errors.AsType[*RefusedError](err); refused {
			result = "refused"
		}
		k.metrics.renewals.WithLabelValues(result).Inc()
		k.say("key not renewed yet", err)
		return k.tries.wait()
	}
	k.metrics.renewals.WithLabelValues("renewed").Inc()
	k.tries.reset()
	k.after = time.Time{}
	return 0
}

// renew makes a new key and has it recorded. The link stays; the next one is with the new key.
func (k *Keeper) renew(ctx context.Context) error {
	k.mu.Lock()
	var err error
	if k.folder.next == nil {
		k.folder.next, err = k.folder.fresh(nextFile)
	}
	k.mu.Unlock()
	if err != nil {
		return err
	}
	crash.At("renew.key")
	wanted := k.folder.next.public
	answer, err := k.renewAs(ctx, own, wanted)
	if err != nil {
		return err
	}
	if answer.Reason != "" {
		return &RefusedError{Reason: answer.Reason}
	}
	crash.At("renew.answered")
	if err := k.accept(answer, wanted); err != nil {
		return err
	}
	k.log.Info("key renewed", zap.String("key", wanted), zap.Time("expires", answer.Expires))
	return nil
}

// accept writes down an answer for a key; the record comes last.
func (k *Keeper) accept(answer identity.Enrolment, public string) error {
	ahead := k.clock.told(answer.Now)
	k.metrics.ahead.Set(ahead.Seconds())
	k.floored = time.Time{}
	k.remember()
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, text := range map[string]string{hubCAFile: answer.HubCA, clusterCAFile: answer.ClusterCA} {
		if text == "" {
			continue
		}
		if pool([]byte(text)) == nil {
			k.log.Warn("the cloud sent no certificate where there should be one, keeping what is here", zap.String("file", name))
			continue
		}
		if err := k.folder.write(name, []byte(text)); err != nil {
			return err
		}
	}
	crash.At("enrol.trusted")
	k.metrics.expires.Set(float64(answer.Expires.Unix()))
	return k.folder.keep(Record{
		Node: k.cfg.Node, Key: public, Issued: answer.Now, Expires: answer.Expires, HubURLs: slices.Clone(answer.HubURLs),
	})
}
