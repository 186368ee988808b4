package enroll_test

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
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

const (
	testNode  = "edge-1"
	testToken = "abcdef.0123456789abcdef"
)

// fakeCloud is a hub with its authenticator and the identity service, as cloud/identity, for one node and in memory.
type fakeCloud struct {
	t    *testing.T
	ca   *leaftest.CA
	door *leaftest.AuthHub

	mu             sync.Mutex // guards all fields below
	cert           tls.Certificate
	key, previous  string
	expires        time.Time
	life           time.Duration
	window         time.Duration
	enrolled       int    // how often a token was used
	changes        int    // how often a key was recorded
	tokens         int    // how often a token was presented
	linked         string // the key of the newest link
	lost           int    // how often an answer was lost with the link, as its key had become unknown
	forgetful      bool   // no link is carried over to another key
	refused        int    // how often a request came too late
	confirmed      int    // how often a gateway confirmed its new key
	pings          int    // how often a gateway has verified its own cell
	mute           bool
	ahead          time.Duration // how far the cloud's clock is ahead, as reported
	hubCA, cluster string
}

func newFakeCloud(t *testing.T) *fakeCloud {
	t.Helper()
	c := &fakeCloud{t: t, ca: leaftest.NewCA(t), life: time.Hour, window: time.Hour, cluster: ""}
	c.cert = c.ca.ServingCert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	c.hubCA = string(c.ca.PEM())
	c.cluster = string(leaftest.NewCA(t).PEM())
	c.door = leaftest.NewAuthHub(t, c.servingCert, c.checkCredential)
	for _, account := range []string{leaftest.LobbyAccount, leaftest.CellAccount} {
		nc := c.door.Client(account)
		_, err := nc.Subscribe("call.cloud.*.*", c.answerCall)
		kit.Must(t, err)
		kit.Must(t, nc.Flush())
	}
	return c
}

func (c *fakeCloud) servingCert() tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert
}

// update changes the cloud's state under its lock.
func (c *fakeCloud) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// readLocked reads a value of the cloud under its lock.
func readLocked[V any](c *fakeCloud, v *V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *v
}

func (c *fakeCloud) checkCredential(shown identity.Credential) *leaftest.Admission {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shown.Token != "" {
		c.tokens++
	}
	name, account := "", ""
	switch known := shown.Key == c.key || shown.Key == c.previous; {
	case shown.Node != testNode:
		return nil
	case known && time.Now().Before(c.expires):
		name, account = testNode, leaftest.CellAccount
	case known, shown.Token == testToken:
		name, account = shown.Key, leaftest.LobbyAccount
	default:
		return nil
	}
	c.linked = shown.Key
	return &leaftest.Admission{
		Account: account, Publish: []string{"call.cloud." + name + ".>"}, Subscribe: []string{subject.InboxPrefix(name) + ".>"},
	}
}

func (c *fakeCloud) answerCall(m *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute {
		return
	}
	parts := strings.Split(m.Subject, ".")
	var answer any = struct{}{}
	switch parts[3] {
	case subject.VerbPing:
		c.pings++
	case identity.VerbEnrol:
		var r identity.EnrolRequest
		if !c.checkError(json.Unmarshal(m.Data, &r)) {
			return
		}
		answer = c.handleEnrol(r)
	case identity.VerbRenew:
		var r identity.RenewRequest
		if !c.checkError(json.Unmarshal(m.Data, &r)) {
			return
		}
		renewed := c.handleRenew(r)
		if r.Link != nil && renewed.Reason == "" && !c.forgetful && isSigned(r.Key, []byte(r.Nonce), r.Link) {
			c.linked, renewed.Carried = r.Key, true
			if r.Key == r.Current {
				c.confirmed++
				c.previous = ""
			}
		}
		answer = renewed
		if c.linked != c.key && c.linked != c.previous {
			c.lost++
			c.door.CloseLinks()
			return
		}
	}
	data, err := json.Marshal(answer)
	if !c.checkError(err) {
		return
	}
	_ = m.Respond(data) // the caller may be gone
}

// checkError reports a fault, from a goroutine that may not end the test.
func (c *fakeCloud) checkError(err error) bool {
	if err != nil {
		c.t.Error(err)
	}
	return err == nil
}

func isSigned(public string, about, signature []byte) bool {
	key, err := nkeys.FromPublicKey(public)
	return err == nil && key.Verify(about, signature) == nil
}

func (c *fakeCloud) handleEnrol(r identity.EnrolRequest) identity.Enrolment {
	if r.Token != testToken || !isSigned(r.Key, identity.Proof(identity.VerbEnrol, r.Node, r.Key), r.Signature) {
		return identity.Enrolment{Reason: "wrong token or signature"}
	}
	if c.key != r.Key {
		c.key = r.Key
		c.enrolled++
		c.changes++
		c.expires = time.Now().Add(c.life)
	}
	return c.newEnrolment()
}

func (c *fakeCloud) handleRenew(r identity.RenewRequest) identity.Enrolment {
	about := identity.Proof(identity.VerbRenew, r.Node, r.Key)
	switch {
	case !isSigned(r.Key, about, r.Signature), !isSigned(r.Current, about, r.Approval):
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
	return c.newEnrolment()
}

func (c *fakeCloud) newEnrolment() identity.Enrolment {
	return identity.Enrolment{Expires: c.expires.Add(c.ahead), Now: time.Now().Add(c.ahead), HubCA: c.hubCA, ClusterCA: c.cluster}
}
