package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker/access"
	"github.com/frond-edge/frond/devicetwin/messages"
)

const (
	// DefaultListen is where KubeEdge's apps look for a broker.
	DefaultListen = "127.0.0.1:1883"
	// defaultMaxClients is far above the devices of a gateway, and takes 20 MB at most (80 KB a client with one subscription, measured).
	defaultMaxClients = 256
	// defaultMaxStore bounds the disk of sessions, retained messages and messages that wait for clients.
	defaultMaxStore = 128 << 20
	// minStore leaves each of the five streams at least a message of full size.
	minStore = 16 << 20
	// defaultSyncInterval is how long a message to an app may be lost in a power cut. Syncing each costs 90 % of the throughput (docs/design/0040).
	defaultSyncInterval = time.Second
	// defaultSessionExpiry covers a night and a shift.
	defaultSessionExpiry = 24 * time.Hour
)

// Config is the configuration of a broker.
type Config struct {
	// Node is the gateway's name.
	Node string
	// Dir is the broker's folder.
	Dir string
	// Listen is an address and port; empty is DefaultListen. Port 0 is any.
	Listen string
	// AllowAnonymous lets clients in that name no user, on a loopback address only. They may use KubeEdge's topics of all devices, as in KubeEdge.
	AllowAnonymous bool
	// Users may connect.
	Users []User
	// TLS is nil for a broker without TLS.
	TLS *tls.Config
	// MaxClients and MaxStore (bytes) are limits; 0 is 256 and 128 MiB.
	MaxClients int
	MaxStore   int64
	// SessionExpiry is how long a client that is away keeps its messages; 0 is a day.
	SessionExpiry time.Duration
	// SyncInterval is how often sessions, subscriptions and messages to apps are synced; 0 is a second, below 0 is at once.
	SyncInterval time.Duration
	// Peer may be nil. PeerOnly: there is no broker here, only the bridge between Peer's apps and the twins.
	Peer     Peer
	PeerOnly bool
	// Custom takes the messages of custom topics; nil: they are for apps of this gateway only.
	Custom *messages.Gate
	// Recorder may be nil: then samples are in the twins only.
	Recorder Recorder
	// Observer may be nil.
	Observer Observer
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// Observer is told what the gateway knows of its devices.
type Observer interface {
	// TwinsChanged is called after each change that is stored, and after the start once for each device. It must not block, and not change the twins.
	TwinsChanged(changed []devicetwin.Twin, removed []types.NamespacedName)
}

// Sample is a value that an app reported.
type Sample struct {
	Device          types.NamespacedName
	Property, Value string
	// Time is the device's own, zero where the app gave none; Received is when the broker took the message.
	Time, Received time.Time
}

// Recorder keeps all samples of devices, not only the last.
type Recorder interface {
	// Record stores samples before their messages are answered. After an error the apps are told to send them again.
	Record(ctx context.Context, samples []Sample) error
	// Enqueue takes samples that are answered before they are stored, in the order of all calls, and waits while too much waits.
	Enqueue(ctx context.Context, samples []Sample) error
	// CheckWritable says why nothing can be recorded, such as that the disk is full, before anything is changed.
	CheckWritable() error
}

// User is a device or an app.
type User = access.User

// Peer is another broker, whose apps are told what those of this one are told.
type Peer interface {
	// Publish must not wait for the other broker: the devices wait for it.
	Publish(ctx context.Context, messages ...Message) error
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.MaxClients == 0 {
		c.MaxClients = defaultMaxClients
	}
	if c.MaxStore == 0 {
		c.MaxStore = defaultMaxStore
	}
	if c.SessionExpiry == 0 {
		c.SessionExpiry = defaultSessionExpiry
	}
	if c.SyncInterval == 0 {
		c.SyncInterval = defaultSyncInterval
	}
	return c
}

// Validate returns all faults of the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Node == "" {
		fault("node is empty")
	}
	if c.Dir == "" {
		fault("dir is empty")
	}
	host, _, err := c.address()
	if err != nil {
		fault("listen: %w", err)
	} else if addr, err := netip.ParseAddr(host); c.AllowAnonymous && (err != nil || !addr.IsLoopback()) {
		fault("allowAnonymous: only on a loopback address, not on %s", c.Listen)
	}
	if c.MaxClients < 0 {
		fault("maxClients is below 0")
	}
	if c.MaxStore < minStore {
		fault("maxStore is below %d", minStore)
	}
	seen := map[string]bool{}
	for _, u := range c.Users {
		switch {
		case u.Name == "" || strings.ContainsAny(u.Name, "/ +#*>$"):
			fault("users: a name is empty, or has a slash, a space, a wildcard or a dollar sign: %q", u.Name)
		case seen[u.Name]:
			fault("users: %s is there twice", u.Name)
		}
		seen[u.Name] = true
		if _, err := bcrypt.Cost([]byte(u.PasswordHash)); err != nil {
			fault("users: the password of %s: %w", u.Name, err)
		}
	}
	return errors.Join(faults...)
}

func (c Config) address() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("the port %q: %w", text, err)
	}
	if number == 0 {
		return host, -1, nil // nats-server's way to say any
	}
	return host, int(number), nil
}
