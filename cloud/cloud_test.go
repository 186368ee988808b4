package cloud

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }

func TestOwner_SpreadsEvenlyAndMovesLittle(t *testing.T) {
	three, two := []string{"a", "b", "c"}, []string{"a", "c"}
	count := map[string]int{}
	const nodes = 3000
	for i := range nodes {
		node := fmt.Sprint("edge-", i)
		before, after := ownerOf(three, node), ownerOf(two, node)
		count[before]++
		if before != "b" && before != after {
			t.Fatalf("%s moved from %s to %s though its owner lives", node, before, after)
		}
	}
	for _, member := range three {
		if n := count[member]; n < nodes/3-nodes/10 || n > nodes/3+nodes/10 {
			t.Errorf("%s owns %d of %d nodes", member, n, nodes)
		}
	}
	if got := ownerOf(nil, "edge-1"); got != "" {
		t.Errorf("without members %q owns a node", got)
	}
}

// startMember runs one replica's view of the members until stop.
func startMember(t *testing.T, self string, kv jetstream.KeyValue) (m *Members, stop func()) {
	t.Helper()
	m = NewMembers(self, kv, nil, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return m.Start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("members: %v", err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

func TestMembers_TakeOverFromLeavingMember(t *testing.T) {
	hub := streamstest.Hub(t)
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subject.MembersBucket)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := startMember(t, "a", kv)
	b, stop := startMember(t, "b", kv)
	for _, m := range []*Members{a, b} {
		streamstest.Eventually(t, "both are seen", func() bool { return len(m.Live()) == 2 })
	}
	node := nodeOwnedBy(t, "b")
	if a.Owns(node) || !b.Owns(node) {
		t.Fatalf("%s: a %v, b %v", node, a.Owns(node), b.Owns(node))
	}
	changed := a.Changed()
	stop()
	began := time.Now()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the member that left is not missed")
	}
	if took := time.Since(began); took > memberExpiry {
		t.Errorf("noticed after %s, though it left by itself", took)
	}
	if !a.Owns(node) {
		t.Error("nobody took over")
	}
	t.Logf("taken over after %s", time.Since(began).Round(time.Millisecond))
}

// nodeOwnedBy finds a node that a member of {a, b} owns.
func nodeOwnedBy(t *testing.T, member string) string {
	t.Helper()
	for i := range 100 {
		if node := fmt.Sprint("edge-", i); ownerOf([]string{"a", "b"}, node) == member {
			return node
		}
	}
	t.Fatalf("%s owns nothing", member)
	return ""
}

func TestValidateCall_OnlyPlainAPIRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		request wire.KubeRequest
		fine    bool
	}{
		"get":                 {wire.KubeRequest{Method: "GET", Path: "/api/v1/namespaces/default/secrets/a"}, true},
		"token":               {wire.KubeRequest{Method: "POST", Path: "/api/v1/namespaces/default/serviceaccounts/a/token"}, true},
		"a pod called exec":   {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/exec"}, true},
		"list":                {wire.KubeRequest{Method: "GET", Path: "/apis/apps/v1/deployments", Query: "limit=5"}, true},
		"watch":               {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=true"}, false},
		"watch as 1":          {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=1"}, false},
		"watch without word":  {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch="}, false},
		"two watches":         {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=0&watch=1"}, false},
		"no watch":            {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=false"}, true},
		"watch by path":       {wire.KubeRequest{Method: "GET", Path: "/api/v1/watch/pods"}, false},
		"group watch by path": {wire.KubeRequest{Method: "GET", Path: "/apis/apps/v1/watch/deployments"}, false},
		"exec":                {wire.KubeRequest{Method: "POST", Path: "/api/v1/namespaces/a/pods/b/exec"}, false},
		"node proxy":          {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/edge-2/proxy"}, false},
		"below node proxy":    {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/edge-2/proxy/run/x"}, false},
		"below pod proxy":     {wire.KubeRequest{Method: "GET", Path: "/api/v1/namespaces/a/pods/b/proxy/x/y"}, false},
		"metrics":             {wire.KubeRequest{Method: "GET", Path: "/metrics"}, false},
		"dots":                {wire.KubeRequest{Method: "GET", Path: "/api/v1/../../metrics"}, false},
		"double slash":        {wire.KubeRequest{Method: "GET", Path: "/api//v1/pods"}, false},
		"strange method":      {wire.KubeRequest{Method: "CONNECT", Path: "/api/v1/pods"}, false},
		"broken query":        {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "%zz"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := validateCall(tt.request); (err == nil) != tt.fine {
				t.Errorf("permitted(%+v): %v, want fine %v", tt.request, err, tt.fine)
			}
		})
	}
}
