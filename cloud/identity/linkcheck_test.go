package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams"
)

// bar is an Enforcer before a hub whose answers the test chooses, and a Kubernetes that may know more than the records do.
type bar struct {
	*Enforcer
	t *testing.T

	mu sync.Mutex
	// live is what Kubernetes says, and broken that it says nothing; guarded by mu, as all that follows.
	live   map[string]*Record
	broken error
	// silent is that the hub's server does not answer who closes links.
	silent  bool
	leafs   []map[string]any
	kicked  []uint64
	cut     []string
	revoked []string
}

const patience = time.Minute

func newBar(t *testing.T) *bar {
	t.Helper()
	hub, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	hub.Start()
	t.Cleanup(func() { hub.Shutdown(); hub.WaitForShutdown() })
	if !hub.ReadyForConnections(patience) {
		t.Fatal("no hub")
	}
	b := &bar{t: t, live: map[string]*Record{}}
	b.serve("$SYS.REQ.SERVER.PING.LEAFZ", b.dial(hub), b.list)
	b.serve("$SYS.REQ.SERVER.S.KICK", b.dial(hub), b.kick)
	nc, log := b.dial(hub), zaptest.NewLogger(t)
	b.Enforcer = NewEnforcer(nc, Policy{Cells: 4}, b, NewMetrics(nil), log)
	b.Use(NewRecords(interceptor.NewClient(nil, interceptor.Funcs{Get: b.get}), b.Changed), NewLinks(nc, b.Admitted, log))
	return b
}

func (b *bar) dial(hub *server.Server) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(hub))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *bar) serve(subject string, nc *nats.Conn, answer func([]byte) any) {
	b.t.Helper()
	_, err := nc.Subscribe(subject, func(msg *nats.Msg) {
		if data, err := json.Marshal(answer(msg.Data)); err == nil && string(data) != "null" {
			_ = msg.Respond(data) // who has asked is gone
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bar) list([]byte) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]any{"server": map[string]any{"id": "S"}, "data": map[string]any{"leafs": b.leafs}}
}

func (b *bar) kick(data []byte) any {
	var one struct {
		CID uint64 `json:"cid"`
	}
	if err := json.Unmarshal(data, &one); err != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kicked = append(b.kicked, one.CID)
	if b.silent {
		return nil
	}
	return struct{}{}
}

func (b *bar) get(_ context.Context, _ client.WithWatch, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := b.live[key.Name]
	switch {
	case b.broken != nil:
		return b.broken
	case is == nil:
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	o := into.(*api.NodeIdentity)
	o.Name, o.Spec.Key, o.Spec.Revoked, o.Spec.Expires.Time = is.Node, is.Key, is.Revoked, is.Expires
	return nil
}

// Cut is Told, and so is Revoked.
func (b *bar) Cut(node, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = append(b.cut, node)
}

func (b *bar) Revoked(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revoked = append(b.revoked, node)
}

// known has the replica know of a record, and of links 1 to n with a key.
func (b *bar) known(record *Record, node, key string, n int) {
	if record != nil {
		b.Changed(b.records.put(node, record), record)
	}
	for cid := range n {
		b.links.keep(held{admission: admission{Server: "S", CID: uint64(cid + 1), Node: node, Key: key}})
	}
}

func (b *bar) closed() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.kicked)
	return slices.Clone(b.kicked)
}

// tell returns whose revocation was told.
func (b *bar) tell() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.revoked)
}

func (b *bar) run() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Start(ctx) }() // until the test ends
	b.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
}

func (b *bar) eventually(holds func() bool, what string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { //nolint:forbidigo // what is waited for has no event
		b.mu.Lock()
		ok := holds()
		b.mu.Unlock()
		switch {
		case ok:
			return
		case time.Now().After(end):
			b.t.Fatal(what)
		}
	}
}

// A replica that has not heard of a key asks Kubernetes before it closes the key's link, and lets it be when nobody answers.
func TestAReplicaThatLagsClosesNoHonestLink(t *testing.T) {
	now := time.Now()
	valid := func(key string, revoked ...string) *Record {
		return &Record{Node: "gw", Key: key, Revoked: revoked, Expires: now.Add(time.Hour)}
	}
	for name, tt := range map[string]struct {
		known, live *Record
		key         string
		broken      error
		kicked, cut bool
	}{
		"joined meanwhile":                     {live: valid("A"), key: "A"},
		"another key meanwhile":                {known: valid("A"), live: valid("B"), key: "B"},
		"more time meanwhile":                  {known: &Record{Node: "gw", Key: "A", Expires: now.Add(-time.Hour)}, live: valid("A"), key: "A"},
		"joined anew meanwhile":                {known: &Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}, live: valid("B", "A"), key: "B"},
		"unknown, and nobody answers":          {key: "A", broken: errors.New("away")},
		"of another key, and nobody answers":   {known: valid("A"), key: "B", broken: errors.New("away")},
		"deleted":                              {key: "A", kicked: true, cut: true},
		"of another key":                       {known: valid("A"), live: valid("A"), key: "B", kicked: true},
		"revoked, and nobody answers":          {known: &Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
		"revoked by hand, and nobody answers":  {known: &Record{Node: "gw", Key: "A", RevokedAt: now, Expires: now.Add(time.Hour)}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
		"its time is over, and nobody answers": {known: &Record{Node: "gw", Key: "A", Expires: now.Add(-time.Hour)}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBar(t)
			b.live["gw"], b.broken = tt.live, tt.broken
			b.known(tt.known, "gw", tt.key, 1)
			b.judgeNode(t.Context(), "gw", now)
			if got := len(b.closed()) > 0; got != tt.kicked {
				t.Errorf("closed: %t, want %t", got, tt.kicked)
			}
			if got := len(b.cut) > 0; got != tt.cut {
				t.Errorf("tunnels cut: %t, want %t", got, tt.cut)
			}
		})
	}
}

// Nobody is told that a revoked node's links are closed while one of them may stand; they are closed all at once.
func TestARevocationIsToldOnceItsLinksAreClosed(t *testing.T) {
	now := time.Now()
	gone := &Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}
	for name, was := range map[string]*Record{"a gateway": {Node: "gw", Key: "A", Expires: now.Add(time.Hour)}, "a Node without a record": nil} {
		t.Run(name, func(t *testing.T) {
			b := newBar(t)
			b.silent = true
			b.known(was, "gw", "A", linksPerNode)
			close(b.records.synced)
			b.run()
			began := time.Now()
			b.known(gone, "gw", "", 0)
			distinct := func() int { return len(slices.Compact(slices.Sorted(slices.Values(b.kicked)))) }
			b.eventually(func() bool { return distinct() == linksPerNode }, "not all links are tried")
			if took := time.Since(began); took > linksPerNode/2*kickTimeout {
				t.Errorf("all were tried after %s only", took)
			}
			b.eventually(func() bool { return len(b.kicked) > linksPerNode }, "it is not tried again")
			if told := b.tell(); !b.Closing("gw") || len(told) > 0 {
				t.Errorf("closing: %t; told: %v", b.Closing("gw"), told)
			}
			b.mu.Lock()
			b.silent = false
			b.mu.Unlock()
			b.eventually(func() bool { return len(b.revoked) > 0 }, "nobody is told")
			if b.Closing("gw") || len(b.links.of("gw")) > 0 {
				t.Error("it is told before its links are closed")
			}
		})
	}
}

// A replica that begins tells of a revocation of a moment ago, and not of one of an hour ago.
func TestARevocationOfWhileAReplicaBeganIsTold(t *testing.T) {
	b := newBar(t)
	for node, ago := range map[string]time.Duration{"just": time.Second, "long": time.Hour} {
		b.known(&Record{Node: node, Revoked: []string{node}, RevokedAt: time.Now().Add(-ago)}, node, "", 0)
	}
	close(b.records.synced)
	b.run()
	b.eventually(func() bool { return len(b.revoked) > 0 }, "nobody is told")
	b.eventually(func() bool { return slices.Contains(b.cut, "long") && slices.Contains(b.cut, "just") }, "not both are judged")
	if diff := cmp.Diff([]string{"just"}, b.tell()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// What cannot be closed in the lobby harms nobody else there.
func TestTheLobbyIsNotJudgedAsACell(t *testing.T) {
	b := newBar(t)
	b.silent = true
	now := time.Now()
	for i, name := range []string{"stays", "joins"} {
		b.leafs = append(b.leafs, map[string]any{"id": i + 1, "name": name})
		if err := b.judgeLobby(t.Context(), now.Add(time.Duration(i)*lobbyStay)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]uint64{1}, b.closed()); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	if account, _ := b.due(time.Now().Add(time.Hour)); account != "" {
		t.Errorf("then %s is looked through", account)
	}
	b.mu.Lock()
	b.silent, b.kicked = false, nil
	b.mu.Unlock()
	if err := b.judgeLobby(t.Context(), now.Add(lobbyStay+time.Minute)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint64{1}, b.closed()); diff != "" {
		t.Errorf("closed a minute later (-want +got):\n%s", diff)
	}
}

// The cell that has waited longest is looked through first, and a node that was just revoked before all others.
func TestNobodyWaitsForEver(t *testing.T) {
	b := newBar(t)
	now := time.Now()
	b.cells["OLD"], b.cells["NEW"], b.cells["LATER"] = []time.Time{now.Add(-time.Minute), now.Add(-time.Second)}, []time.Time{now}, []time.Time{now.Add(time.Hour)}
	var turns []string
	for account, _ := b.due(now); account != ""; account, _ = b.due(now) {
		turns = append(turns, account)
	}
	if diff := cmp.Diff([]string{"OLD", "NEW"}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for i := range 20 {
		b.look(fmt.Sprint("gw-", i), 0)
	}
	b.shutting("gw-7")
	b.look("later", time.Hour)
	nodes, wait := b.take(time.Now().Add(time.Second))
	if len(nodes) != 20 || nodes[0] != "gw-7" || wait != sweepEvery {
		t.Errorf("nodes %v, the next one after %s", nodes, wait)
	}
}

// A link that ended by itself is forgotten.
func TestALinkThatEndsIsForgotten(t *testing.T) {
	b := newBar(t)
	b.known(nil, "gw", "A", 2)
	b.ended([]byte(`{"server":{"name":"hub-1","id":"S"},"client":{"id":1,"acc":"` + streams.CellAccount("gw", 4) + `","name":"gw"},"reason":"Client Closed"}`))
	b.ended([]byte(strings.Repeat("x", 10)))
	if left := b.links.of("gw"); len(left) != 1 || left[0].CID != 2 {
		t.Errorf("left: %+v", left)
	}
}
