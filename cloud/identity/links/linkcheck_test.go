package links

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
)

// enforcerFixture is an Enforcer with a hub whose answers the test chooses, and a Kubernetes that may have newer
// records than the replica.
type enforcerFixture struct {
	*Enforcer
	t       *testing.T
	records *memoryRecords

	mu sync.Mutex
	// kubeRecords are the records in Kubernetes, and kubeError its error instead; guarded by mu, as all that follows.
	kubeRecords map[string]*identity.Record
	kubeError   error
	// kicksMuted: the hub's server does not answer requests to close links.
	kicksMuted    bool
	leafs         []map[string]any
	kicked        []uint64
	closedStreams []string
	revoked       []string
}

const testTimeout = time.Minute

// memoryRecords are records that the test sets; identity.Records reads the live ones.
type memoryRecords struct {
	*identity.Records
	synced chan struct{}

	mu     sync.Mutex
	byNode map[string]*identity.Record // guarded by mu
}

func (m *memoryRecords) Synced() <-chan struct{} { return m.synced }

func (m *memoryRecords) Lookup(node string) *identity.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byNode[node]
}

func (m *memoryRecords) All() []*identity.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byNode))
}

func (m *memoryRecords) IsRevoked(key string) bool {
	return slices.ContainsFunc(m.All(), func(r *identity.Record) bool { return slices.Contains(r.Revoked, key) })
}

// put stores a record and returns the previous one.
func (m *memoryRecords) put(node string, is *identity.Record) (was *identity.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, m.byNode[node] = m.byNode[node], is
	return was
}

func newEnforcerFixture(t *testing.T) *enforcerFixture {
	t.Helper()
	hub, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	hub.Start()
	t.Cleanup(func() { hub.Shutdown(); hub.WaitForShutdown() })
	if !hub.ReadyForConnections(testTimeout) {
		t.Fatal("no hub")
	}
	b := &enforcerFixture{t: t, kubeRecords: map[string]*identity.Record{}}
	b.serveSubject("$SYS.REQ.SERVER.PING.LEAFZ", b.connectHub(hub), b.listLeafs)
	b.serveSubject("$SYS.REQ.SERVER.S.KICK", b.connectHub(hub), b.recordKick)
	nc, log := b.connectHub(hub), zaptest.NewLogger(t)
	kube := identity.NewRecords(interceptor.NewClient(nil, interceptor.Funcs{Get: b.getIdentity}))
	b.records = &memoryRecords{Records: kube, byNode: map[string]*identity.Record{}, synced: make(chan struct{})}
	schedule := NewSchedule(identity.Policy{Cells: 4}, b.records)
	b.Enforcer = NewEnforcer(nc, b.records, NewRegistry(nc, schedule.OnAdmitted, log), schedule, b, NewMetrics(nil), log)
	return b
}

func (b *enforcerFixture) connectHub(hub *server.Server) *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(hub))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *enforcerFixture) serveSubject(subj string, nc *nats.Conn, answer func([]byte) any) {
	b.t.Helper()
	_, err := nc.Subscribe(subj, func(msg *nats.Msg) {
		if data, err := json.Marshal(answer(msg.Data)); err == nil && string(data) != "null" {
			_ = msg.Respond(data) // the requester is gone
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *enforcerFixture) listLeafs([]byte) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]any{"server": map[string]any{"id": "S"}, "data": map[string]any{"leafs": b.leafs}}
}

func (b *enforcerFixture) recordKick(data []byte) any {
	var one struct {
		CID uint64 `json:"cid"`
	}
	if err := json.Unmarshal(data, &one); err != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kicked = append(b.kicked, one.CID)
	if b.kicksMuted {
		return nil
	}
	return struct{}{}
}

func (b *enforcerFixture) getIdentity(_ context.Context, _ client.WithWatch, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := b.kubeRecords[key.Name]
	switch {
	case b.kubeError != nil:
		return b.kubeError
	case is == nil:
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	o := into.(*api.NodeIdentity)
	o.Name, o.Spec.Key, o.Spec.Revoked, o.Spec.Expires.Time = is.Node, is.Key, is.Revoked, is.Expires
	return nil
}

// CloseStreams implements Notifier, as NodeRevoked does.
func (b *enforcerFixture) CloseStreams(node, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closedStreams = append(b.closedStreams, node)
}

func (b *enforcerFixture) NodeRevoked(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revoked = append(b.revoked, node)
}

// addNode adds a record to the replica's memory, and links 1 to n with a key.
func (b *enforcerFixture) addNode(record *identity.Record, node, key string, n int) {
	if record != nil {
		b.schedule.OnRecordChanged(b.records.put(node, record), record)
	}
	for cid := range n {
		b.links.storeLink(knownLink{Admission: Admission{Server: "S", CID: uint64(cid + 1), Node: node, Key: key}})
	}
}

func (b *enforcerFixture) closedLinks() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.kicked)
	return slices.Clone(b.kicked)
}

// notifiedNodes returns the nodes whose revocation was reported.
func (b *enforcerFixture) notifiedNodes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.revoked)
}

func (b *enforcerFixture) startEnforcer() {
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

func (b *enforcerFixture) waitFor(holds func() bool, what string) {
	b.t.Helper()
	kit.Within(b.t, testTimeout, what, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return holds()
	})
}

// A replica that does not know a key reads Kubernetes before it closes the key's link, and keeps the link if there is no answer.
func TestEnforcer_StaleReplicaKeepsValidLinks(t *testing.T) {
	now := time.Now()
	valid := func(key string, revoked ...string) *identity.Record {
		return &identity.Record{Node: "gw", Key: key, Revoked: revoked, Expires: now.Add(time.Hour)}
	}
	for name, tt := range map[string]struct {
		known, live *identity.Record
		key         string
		broken      error
		kicked, cut bool
	}{
		"joined meanwhile":                     {live: valid("A"), key: "A"},
		"another key meanwhile":                {known: valid("A"), live: valid("B"), key: "B"},
		"more time meanwhile":                  {known: &identity.Record{Node: "gw", Key: "A", Expires: now.Add(-time.Hour)}, live: valid("A"), key: "A"},
		"joined anew meanwhile":                {known: &identity.Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}, live: valid("B", "A"), key: "B"},
		"unknown, and nobody answers":          {key: "A", broken: errors.New("away")},
		"of another key, and nobody answers":   {known: valid("A"), key: "B", broken: errors.New("away")},
		"deleted":                              {key: "A", kicked: true, cut: true},
		"of another key":                       {known: valid("A"), live: valid("A"), key: "B", kicked: true},
		"revoked, and nobody answers":          {known: &identity.Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
		"revoked by hand, and nobody answers":  {known: &identity.Record{Node: "gw", Key: "A", RevokedAt: now, Expires: now.Add(time.Hour)}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
		"its time is over, and nobody answers": {known: &identity.Record{Node: "gw", Key: "A", Expires: now.Add(-time.Hour)}, key: "A", broken: errors.New("away"), kicked: true, cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newEnforcerFixture(t)
			b.kubeRecords["gw"], b.kubeError = tt.live, tt.broken
			b.addNode(tt.known, "gw", tt.key, 1)
			b.evaluateNode(t.Context(), "gw", now)
			if got := len(b.closedLinks()) > 0; got != tt.kicked {
				t.Errorf("closed: %t, want %t", got, tt.kicked)
			}
			if got := len(b.closedStreams) > 0; got != tt.cut {
				t.Errorf("tunnels cut: %t, want %t", got, tt.cut)
			}
		})
	}
}

// A revocation is not reported as complete while one of the node's links may be open; the links are closed concurrently.
func TestEnforcer_NotifiesRevocationAfterLinksClosed(t *testing.T) {
	now := time.Now()
	gone := &identity.Record{Node: "gw", Revoked: []string{"A"}, RevokedAt: now}
	for name, was := range map[string]*identity.Record{"a gateway": {Node: "gw", Key: "A", Expires: now.Add(time.Hour)}, "a Node without a record": nil} {
		t.Run(name, func(t *testing.T) {
			b := newEnforcerFixture(t)
			b.kicksMuted = true
			b.addNode(was, "gw", "A", maxLinksPerNode)
			close(b.records.synced)
			b.startEnforcer()
			began := time.Now()
			b.addNode(gone, "gw", "", 0)
			distinct := func() int { return len(slices.Compact(slices.Sorted(slices.Values(b.kicked)))) }
			b.waitFor(func() bool { return distinct() == maxLinksPerNode }, "not all links are tried")
			if took := time.Since(began); took > maxLinksPerNode/2*kickTimeout {
				t.Errorf("all were tried after %s only", took)
			}
			b.waitFor(func() bool { return len(b.kicked) > maxLinksPerNode }, "it is not tried again")
			if told := b.notifiedNodes(); !b.schedule.IsClosing("gw") || len(told) > 0 {
				t.Errorf("closing: %t; told: %v", b.schedule.IsClosing("gw"), told)
			}
			b.mu.Lock()
			b.kicksMuted = false
			b.mu.Unlock()
			b.waitFor(func() bool { return len(b.revoked) > 0 }, "nobody is told")
			if b.schedule.IsClosing("gw") || len(b.links.linksOf("gw")) > 0 {
				t.Error("it is told before its links are closed")
			}
		})
	}
}

// A replica that starts reports a revocation of a moment ago, and not one of an hour ago.
func TestEnforcer_NotifiesRevocationDuringStart(t *testing.T) {
	b := newEnforcerFixture(t)
	for node, ago := range map[string]time.Duration{"just": time.Second, "long": time.Hour} {
		b.addNode(&identity.Record{Node: node, Revoked: []string{node}, RevokedAt: time.Now().Add(-ago)}, node, "", 0)
	}
	close(b.records.synced)
	b.startEnforcer()
	b.waitFor(func() bool { return len(b.revoked) > 0 }, "nobody is told")
	b.waitFor(func() bool {
		return slices.Contains(b.closedStreams, "long") && slices.Contains(b.closedStreams, "just")
	}, "not both are judged")
	if diff := cmp.Diff([]string{"just"}, b.notifiedNodes()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// A link in the lobby that cannot be closed does not affect the others there.
func TestEnforcer_LobbyLinksTimeOut(t *testing.T) {
	b := newEnforcerFixture(t)
	b.kicksMuted = true
	now := time.Now()
	for i, name := range []string{"stays", "joins"} {
		b.leafs = append(b.leafs, map[string]any{"id": i + 1, "name": name})
		if err := b.evaluateLobby(t.Context(), now.Add(time.Duration(i)*lobbyTimeout)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]uint64{1}, b.closedLinks()); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	if account, _ := b.schedule.dueCell(time.Now().Add(time.Hour)); account != "" {
		t.Errorf("then %s is looked through", account)
	}
	b.mu.Lock()
	b.kicksMuted, b.kicked = false, nil
	b.mu.Unlock()
	if err := b.evaluateLobby(t.Context(), now.Add(lobbyTimeout+time.Minute)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint64{1}, b.closedLinks()); diff != "" {
		t.Errorf("closed a minute later (-want +got):\n%s", diff)
	}
}

// The cell that has waited longest is checked first, and a node that was just revoked before all others.
func TestSchedule_DueOrder(t *testing.T) {
	b := newEnforcerFixture(t)
	now := time.Now()
	b.schedule.cellSchedule["OLD"], b.schedule.cellSchedule["NEW"], b.schedule.cellSchedule["LATER"] = []time.Time{now.Add(-time.Minute), now.Add(-time.Second)}, []time.Time{now}, []time.Time{now.Add(time.Hour)}
	var turns []string
	for account, _ := b.schedule.dueCell(now); account != ""; account, _ = b.schedule.dueCell(now) {
		turns = append(turns, account)
	}
	if diff := cmp.Diff([]string{"OLD", "NEW"}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for i := range 20 {
		b.schedule.scheduleNode(fmt.Sprint("gw-", i), 0)
	}
	b.schedule.markRevoked("gw-7")
	b.schedule.scheduleNode("later", time.Hour)
	nodes, wait := b.schedule.dueNodes(time.Now().Add(time.Second))
	if len(nodes) != 20 || nodes[0] != "gw-7" || wait != sweepInterval {
		t.Errorf("nodes %v, the next one after %s", nodes, wait)
	}
}

// However many cells have newly admitted links, they are checked one after the other, the one that is due longest first; the
// cells of revoked nodes do not wait for them.
func TestSchedule_NewcomersArePaced(t *testing.T) {
	b := newEnforcerFixture(t)
	now := time.Now()
	b.schedule.newcomerCells["A"], b.schedule.newcomerCells["B"], b.schedule.newcomerCells["C"] = now.Add(-2*time.Second), now.Add(-time.Second), now.Add(10*time.Second)
	b.schedule.cellSchedule["REVOKED"] = []time.Time{now.Add(newcomerPace / 4)}
	for _, step := range []struct {
		at   time.Duration
		cell string
		wait time.Duration
	}{
		{0, "A", newcomerPace / 4},
		{0, "", newcomerPace / 4},
		{newcomerPace / 4, "REVOKED", sweepInterval},
		{newcomerPace / 4, "", newcomerPace * 3 / 4},
		{newcomerPace, "B", 9 * time.Second},
		{2 * newcomerPace, "", 8 * time.Second},
		{10 * time.Second, "C", sweepInterval},
	} {
		if cell, wait := b.schedule.dueCell(now.Add(step.at)); cell != step.cell || wait != step.wait {
			t.Errorf("after %s: cell %q, wait %s; want %q, %s", step.at, cell, wait, step.cell, step.wait)
		}
	}
}

// A link that has ended is forgotten.
func TestEnforcer_EndedLinkIsForgotten(t *testing.T) {
	b := newEnforcerFixture(t)
	b.addNode(nil, "gw", "A", 2)
	b.forgetEnded([]byte(`{"server":{"name":"hub-1","id":"S"},"client":{"id":1,"acc":"` + subject.CellAccount("gw", 4) + `","name":"gw"},"reason":"Client Closed"}`))
	b.forgetEnded([]byte(strings.Repeat("x", 10)))
	if left := b.links.linksOf("gw"); len(left) != 1 || left[0].CID != 2 {
		t.Errorf("left: %+v", left)
	}
}
