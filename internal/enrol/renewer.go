package enrol

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/leaf"
)

// Config says who the gateway wants to be, and how it finds the cloud.
type Config struct {
	// Node is the name of its Kubernetes Node.
	Node string
	// Dir is the folder of the identity.
	Dir string
	// Hub are the hub's leaf listeners; those that the cloud names come before them.
	Hub []string
	// Token is what it joins with, or TokenFile holds it; both may be empty for a gateway that is enrolled.
	Token, TokenFile string
	// CAHashes are those of the hub's CA, one or more, "sha256:" and the hash of the public key; needed with a token.
	CAHashes []string
	// Proxy finds the HTTP proxy to a hub; nil is none.
	Proxy func(hub *url.URL) (*url.URL, error)
	// Wall is the machine's clock; nil is time.Now.
	Wall func() time.Time
	// Up is how long the machine has run, asleep or not; nil asks the kernel.
	Up func() time.Duration
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

// Renewer keeps a gateway's identity.
type Renewer struct {
	cfg     Config
	log     *zap.Logger
	metrics *renewerMetrics
	clock   *trustedClock
	// enrolled closes when there is a record.
	enrolled chan struct{}

	mu     sync.Mutex // guards all below
	folder *identityDir
	// linkKey is the key that the link stands for: the one of the last connection, or the one that it was carried over to. nonce is the
	// hub's of that connection, and dials is how many there were since the last link.
	linkKey *nodeKey
	nonce   string
	dials   int
	// refused is why the cloud does not renew the key; "" if it may.
	refused string

	// Of Start alone:
	link         Link
	nc           *nats.Conn
	lastWarned   string
	backoff      retryBackoff
	settledSince time.Time // the link's Since when it was found to be the node's own
	renewAfter   time.Time // who is due waits until then; zero while it is not due
	floorSavedAt time.Time // when the known time was last written
}

// New reads the folder, or makes it. It asks nobody.
func New(cfg Config, log *zap.Logger) (*Renewer, error) {
	f, err := openIdentityDir(cfg.Dir, cfg.Node)
	if err != nil {
		return nil, err
	}
	var floor struct {
		Floor time.Time `json:"floor"`
	}
	if err := f.readJSON(clockFile, &floor); err != nil {
		log.Warn("the last known time is lost, the machine's clock is believed", zap.Error(err))
	}
	k := &Renewer{cfg: cfg, log: log.Named("enrol"), folder: f, clock: newTrustedClock(cfg.Wall, cfg.Up, floor.Floor), enrolled: make(chan struct{})}
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
func (k *Renewer) Enrolled() <-chan struct{} { return k.enrolled }

// Record is what the cloud said last; zero before it has.
func (k *Renewer) Record() Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.folder.record
}

// Refused is why the cloud does not renew this gateway's key, and what to do; "" is that it has not said so.
func (k *Renewer) Refused() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused
}

func (k *Renewer) setRefused(reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused = reason
}

// HubCA and ClusterCA are the files of the CAs; before the enrolment they do not exist.
func (k *Renewer) HubCA() string { return k.folder.path(hubCAFile) }

// ClusterCA is the file with the CAs of the Kubernetes cluster.
func (k *Renewer) ClusterCA() string { return k.folder.path(clusterCAFile) }

// Hubs are the hub's leaf listeners: those that the cloud named, then those of the configuration. What the cloud says wrongly must
// not keep a gateway out.
func (k *Renewer) Hubs() []string {
	var all []string
	for _, hub := range slices.Concat(k.Record().HubURLs, k.cfg.Hub) {
		if !slices.Contains(all, hub) {
			all = append(all, hub)
		}
	}
	return all
}

// Now is the time as the cloud has it, as far as is known.
func (k *Renewer) Now() time.Time {
	now, _ := k.clock.now()
	return now
}

// Credential answers a hub's nonce, for leaf.Config.
func (k *Renewer) Credential(nonce []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.folder
	if f.current == nil {
		return nil, errors.New("this gateway has no key yet")
	}
	k.linkKey, k.nonce = f.current, string(nonce)
	// The cloud may know the old key only, when it has lost what it answered or was put back to an older copy, or the next one only,
	// when that was seen once. Mostly there is nobody to judge, so the others have each fourth turn.
	const patient, turn = 3, 4
	if others := f.otherKeys(); k.dials >= patient && (k.dials-patient)%turn == 0 && len(others) > 0 {
		k.linkKey = others[(k.dials-patient)/turn%len(others)]
	}
	k.dials++
	c := identity.Credential{Node: k.cfg.Node, Key: k.linkKey.public}
	if f.record.Key == "" {
		token, err := k.readToken()
		if err != nil {
			return nil, err
		}
		c.Token = token
	}
	signature, err := k.linkKey.Sign(nonce)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's nonce: %w", err)
	}
	return identity.EncodeCredential(c, signature)
}

func (k *Renewer) readToken() (string, error) {
	if k.cfg.Token != "" || k.cfg.TokenFile == "" {
		return k.cfg.Token, nil
	}
	data, err := os.ReadFile(k.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return string(bytes.TrimSpace(data)), nil
}
