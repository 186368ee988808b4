package enrol_test

import (
	"crypto/tls"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/leaf/leaftest"
	"github.com/frond-edge/frond/streams"
)

const (
	node  = "edge-1"
	token = "abcdef.0123456789abcdef"
)

// cloud is a hub with who judges and answers behind it, as cloud/identity does, for one node and in memory.
type cloud struct {
	t    *testing.T
	ca   *leaftest.CA
	door *leaftest.Door

	mu             sync.Mutex // guards all below
	cert           tls.Certificate
	key, previous  string
	expires        time.Time
	life           time.Duration
	window         time.Duration
	enrolled       int    // how often a token was used
	changes        int    // how often a key was recorded
	tokens         int    // how often one was shown
	linked         string // the key of the newest link
	lost           int    // how often an answer was lost with the link, as its key was nobody's any more
	forgetful      bool   // no link is carried over to another key
	refused        int    // how often it was too late
	confirmed      int    // how often a gateway said that it has its new key
	pings          int    // how often one has found its link to be its own
	mute           bool
	ahead          time.Duration // of the cloud's clock, as it says
	hubCA, cluster string
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{t: t, ca: leaftest.NewCA(t), life: time.Hour, window: time.Hour, cluster: ""}
	c.cert = c.ca.Serving(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	c.hubCA = string(c.ca.PEM())
	c.cluster = string(leaftest.NewCA(t).PEM())
	c.door = leaftest.NewDoor(t, c.shows, c.judge)
	for _, account := range []string{leaftest.Lobby, leaftest.Cell} {
		nc := c.door.Client(account)
		_, err := nc.Subscribe("call.cloud.*.*", c.answer)
		must(t, err)
		must(t, nc.Flush())
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cloud) shows() tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert
}

// set changes the cloud.
func (c *cloud) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// read looks at the cloud.
func read[V any](c *cloud, v *V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *v
}

func (c *cloud) judge(shown identity.Credential) *leaftest.Pass {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shown.Token != "" {
		c.tokens++
	}
	name, account := "", ""
	switch known := shown.Key == c.key || shown.Key == c.previous; {
	case shown.Node != node:
		return nil
	case known && time.Now().Before(c.expires):
		name, account = node, leaftest.Cell
	case known, shown.Token == token:
		name, account = shown.Key, leaftest.Lobby
	default:
		return nil
	}
	c.linked = shown.Key
	return &leaftest.Pass{
		Account: account, Publish: []string{"call.cloud." + name + ".>"}, Subscribe: []string{streams.InboxPrefix(name) + ".>"},
	}
}

func (c *cloud) answer(m *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute {
		return
	}
	parts := strings.Split(m.Subject, ".")
	var answer any = struct{}{}
	switch parts[3] {
	case streams.VerbPing:
		c.pings++
	case identity.VerbEnrol:
		var r identity.EnrolRequest
		if !c.understands(json.Unmarshal(m.Data, &r)) {
			return
		}
		answer = c.enrol(r)
	case identity.VerbRenew:
		var r identity.RenewRequest
		if !c.understands(json.Unmarshal(m.Data, &r)) {
			return
		}
		renewed := c.renew(r)
		if r.Link != nil && renewed.Reason == "" && !c.forgetful && signed(r.Key, []byte(r.Nonce), r.Link) {
			c.linked, renewed.Carried = r.Key, true
			if r.Key == r.Current {
				c.confirmed++
				c.previous = ""
			}
		}
		answer = renewed
		if c.linked != c.key && c.linked != c.previous {
			c.lost++
			c.door.Kick()
			return
		}
	}
	data, err := json.Marshal(answer)
	if !c.understands(err) {
		return
	}
	_ = m.Respond(data) // whoever asked may be gone
}

// understands tells a fault, from a goroutine that may not end the test.
func (c *cloud) understands(err error) bool {
	if err != nil {
		c.t.Error(err)
	}
	return err == nil
}

func signed(public string, about, signature []byte) bool {
	key, err := nkeys.FromPublicKey(public)
	return err == nil && key.Verify(about, signature) == nil
}

func (c *cloud) enrol(r identity.EnrolRequest) identity.Enrolment {
	if r.Token != token || !signed(r.Key, identity.Proof(identity.VerbEnrol, r.Node, r.Key), r.Signature) {
		return identity.Enrolment{Reason: "wrong token or signature"}
	}
	if c.key != r.Key {
		c.key = r.Key
		c.enrolled++
		c.changes++
		c.expires = time.Now().Add(c.life)
	}
	return c.record()
}

func (c *cloud) renew(r identity.RenewRequest) identity.Enrolment {
	about := identity.Proof(identity.VerbRenew, r.Node, r.Key)
	switch {
	case !signed(r.Key, about, r.Signature), !signed(r.Current, about, r.Approval):
		return identity.Enrolment{Reason: "wrong signature"}
	case r.Current != c.key && r.Current != c.previous:
		return identity.Enrolment{Reason: "unknown key"}
	case time.Now().After(c.expires.Add(c.window)):
		c.refused++
		return identity.Enrolment{Reason: "expired too long ago: make a token for it"}
	case r.Key != c.key:
		c.previous, c.key = r.Current, r.Key
		c.changes++
		c.expires = time.Now().Add(c.life)
	case time.Now().After(c.expires):
		c.expires = time.Now().Add(c.life)
	}
	return c.record()
}

func (c *cloud) record() identity.Enrolment {
	return identity.Enrolment{Expires: c.expires.Add(c.ahead), Now: time.Now().Add(c.ahead), HubCA: c.hubCA, ClusterCA: c.cluster}
}
