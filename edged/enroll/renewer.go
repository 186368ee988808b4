package enroll

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
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/leaf"
)

// Config holds the gateway's intended identity, and how it reaches the cloud.
type Config struct {
	// Node is the name of its Kubernetes Node.
	Node string
	// Dir is the folder of the identity.
	Dir string
	// Hub lists the hub's leaf listeners; those that the cloud names come before them.
	Hub []string
	// Token is the join token, or TokenFile contains it; both may be empty for an enrolled gateway.
	Token, TokenFile string
	// CAHashes are the hashes of the hub's CA, one or more, "sha256:" and the hash of the public key; required with a token.
	CAHashes []string
	// Proxy returns the HTTP proxy to a hub; nil is none.
	Proxy func(hub *url.URL) (*url.URL, error)
	// Wall is the machine's clock; nil is time.Now.
	Wall func() time.Time
	// Up returns how long the machine has run, including suspend; nil asks the kernel.
	Up func() time.Duration
	// Once makes Start return the reason when the cloud refuses the gateway, instead of retrying.
	Once bool
	// Metrics registers the metrics; nil drops them.
	Metrics prometheus.Registerer
}

// Link is the leaf that connects the gateway.
type Link interface {
	WatchLink() (leaf.LinkState, <-chan struct{})
	Problem() error
	Redial()
	Conn(name string, opts ...nats.Option) (*nats.Conn, error)
}

// Renewer maintains a gateway's identity: it enrols the gateway and renews its key.
type Renewer struct {
	cfg     Config
	log     *zap.Logger
	metrics *renewerMetrics
	clock   *trustedClock
	// enrolled closes when there is a record.
	enrolled chan struct{}

	mu     sync.Mutex // guards all fields below
	folder *identitydir.Folder
	// linkKey is the key of the link: that of the last connection, or the one to which it was carried over. nonce is the
	// hub's of that connection, and dials counts the connections since the last link.
	linkKey *identitydir.Key
	nonce   string
	dials   int
	// refused is the reason why the cloud does not renew the key; "" if it may.
	refused string

	// Used by Start alone:
	link         Link
	nc           *nats.Conn
	lastWarned   string
	backoff      retryBackoff
	settledSince time.Time // the link's Since when it was found to be in the node's own cell
	renewAfter   time.Time // a due renewal waits until then; zero while it is not due
	floorSavedAt time.Time // when the known time was last saved
}

// New reads the folder, or creates it. It sends no request.
func New(cfg Config, log *zap.Logger) (*Renewer, error) {
	f, err := identitydir.Open(cfg.Dir, cfg.Node)
	if err != nil {
		return nil, err
	}
	floor, err := f.ClockFloor()
	if err != nil {
		log.Warn("the last known time is lost, the machine's clock is believed", zap.Error(err))
	}
	k := &Renewer{cfg: cfg, log: log.Named("enrol"), folder: f, clock: newTrustedClock(cfg.Wall, cfg.Up, floor), enrolled: make(chan struct{})}
	if k.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if f.Record.Key != "" {
		k.metrics.expires.Set(float64(f.Record.Expires.Unix()))
		close(k.enrolled)
	}
	return k, nil
}

// Enrolled closes when the cloud has recorded this gateway.
func (k *Renewer) Enrolled() <-chan struct{} { return k.enrolled }

// Record returns the cloud's latest answer; zero before there is one.
func (k *Renewer) Record() identitydir.Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.folder.Record
}

// Refused returns why the cloud does not renew this gateway's key, and what to do; "" if the cloud has not refused.
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
func (k *Renewer) HubCA() string { return k.folder.HubCA() }

// ClusterCA is the file with the CAs of the Kubernetes cluster.
func (k *Renewer) ClusterCA() string { return k.folder.ClusterCA() }

// Hubs lists the hub's leaf listeners: those that the cloud named, then those of the configuration. A wrong answer of the
// cloud must not keep a gateway out.
func (k *Renewer) Hubs() []string {
	var all []string
	for _, hub := range slices.Concat(k.Record().HubURLs, k.cfg.Hub) {
		if !slices.Contains(all, hub) {
			all = append(all, hub)
		}
	}
	return all
}

// Now returns the cloud's time, as far as it is known.
func (k *Renewer) Now() time.Time {
	now, _ := k.clock.now()
	return now
}

// Credential signs a hub's nonce, for leaf.Config.
func (k *Renewer) Credential(nonce []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.folder
	if f.Current == nil {
		return nil, errors.New("this gateway has no key yet")
	}
	k.linkKey, k.nonce = f.Current, string(nonce)
	// The cloud may know only the old key, if it has lost its answer or was restored from an older copy, or only the next
	// one, if that was accepted once. Usually no cloudcore is running, so the other keys are tried only each fourth time.
	const patient, turn = 3, 4
	if others := f.OtherKeys(); k.dials >= patient && (k.dials-patient)%turn == 0 && len(others) > 0 {
		k.linkKey = others[(k.dials-patient)/turn%len(others)]
	}
	k.dials++
	c := identity.Credential{Node: k.cfg.Node, Key: k.linkKey.Public}
	if f.Record.Key == "" {
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
