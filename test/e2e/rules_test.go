package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/frond-edge/frond/api/rules"
)

// A rule as a user of KubeEdge has it: nothing names Frond.
const countRule = `
apiVersion: rules.kubeedge.io/v1
kind: RuleEndpoint
metadata: {name: apps}
spec: {ruleEndpointType: eventbus, properties: {}}
---
apiVersion: rules.kubeedge.io/v1
kind: RuleEndpoint
metadata: {name: receiver}
spec: {ruleEndpointType: rest, properties: {}}
---
apiVersion: rules.kubeedge.io/v1
kind: Rule
metadata: {name: count}
spec:
  source: apps
  sourceResource: {topic: user/rule-count, node_name: edge-1}
  target: receiver
  targetResource: {resource: "TARGET"}
`

// receiver is the target of a rule: it accepts a message, or answers 503.
type receiver struct {
	mu     sync.Mutex
	away   bool     // guarded by mu
	ids    []string // of accepted messages, the repeated ones too; guarded by mu
	values []int    // of accepted messages that were not repeated; guarded by mu
	faults []string // guarded by mu
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	value, err2 := strconv.Atoi(string(body))
	h := request.Header
	if err != nil || err2 != nil || request.Method != http.MethodPost || h.Get("NodeName") != "edge-1" || h.Get("Frond-Topic") != "default/user/rule-count" {
		r.faults = append(r.faults, fmt.Sprintf("%s %q with %v", request.Method, body, h))
	}
	id := h.Get("Frond-Message-Id")
	if n := len(r.ids); n == 0 || r.ids[n-1] != id {
		r.values = append(r.values, value)
	}
	r.ids = append(r.ids, id)
}

func (r *receiver) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// last returns the last accepted value, -1 without one.
func (r *receiver) last() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.values) == 0 {
		return -1
	}
	return r.values[len(r.values)-1]
}

// awaitNews waits until the receiver has accepted later messages than now.
func (r *receiver) awaitNews(t *testing.T, what string) {
	t.Helper()
	before := r.last()
	eventually(t, "messages arrive: "+what, func(context.Context) string {
		if last := r.last(); last <= before {
			return fmt.Sprint("the last is ", last)
		}
		return ""
	})
}

func ruleStatus(t *testing.T, name string) (status rules.RuleStatus) {
	t.Helper()
	var rule rules.Rule
	if err := json.Unmarshal([]byte(runKubectl(t, "get", "rule.rules.kubeedge.io", name, "-o", "json")), &rule); err != nil {
		t.Fatal(err)
	}
	return rule.Status
}

// TestRules_EventBusToREST passes messages of an app on to a server while the server is away, the link is cut, and edgecore and each cloudcore are killed.
// Each message with a PUBACK arrives, in order; what comes twice has the same id.
func TestRules_EventBusToREST(t *testing.T) {
	target := &receiver{}
	server := httptest.NewServer(target)
	t.Cleanup(server.Close)
	applyManifest(t, strings.Replace(countRule, "TARGET", server.URL+"/count", 1))
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &sensor{topic: "default/user/rule-count"}, make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		background := context.WithoutCancel(t.Context())
		if err := shared.Heal(background, "edge-1"); err != nil {
			t.Error(err)
		}
		for _, part := range []string{"cloudcore-1", "cloudcore-2", "edge-1"} {
			if shared.PID(part) == 0 {
				if err := shared.Start(background, part); err != nil {
					t.Error(err)
				}
			}
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	target.awaitNews(t, "at first")
	target.setAway(true)
	eventually(t, "the status tells of the target", func(context.Context) string {
		if status := ruleStatus(t, "count"); len(status.Errors) == 0 || status.WaitingMessages == 0 || status.OldestWaiting == nil {
			return fmt.Sprintf("%+v", status)
		}
		return ""
	})
	must(shared.Cut(t.Context(), "edge-1", false))
	must(shared.Kill(t.Context(), "edge-1"))
	must(shared.Start(t.Context(), "edge-1"))
	must(shared.Heal(t.Context(), "edge-1"))
	target.setAway(false)
	target.awaitNews(t, "after the target was away and the link was cut")
	for _, replica := range []string{"cloudcore-1", "cloudcore-2"} {
		must(shared.Kill(t.Context(), replica))
		target.awaitNews(t, "without "+replica)
		must(shared.Start(t.Context(), replica))
	}
	cancel()
	<-ended
	last := int(s.acked.Load())
	eventually(t, "the last message arrives", func(context.Context) string {
		if got := target.last(); got < last {
			return fmt.Sprintf("%d of %d", got, last)
		}
		return ""
	})
	eventually(t, "the status counts all messages", func(context.Context) string {
		status := ruleStatus(t, "count")
		if status.WaitingMessages != 0 || status.SuccessMessages == 0 || status.FailMessages != 0 {
			return fmt.Sprintf("%+v", status)
		}
		return ""
	})
	target.mu.Lock()
	defer target.mu.Unlock()
	t.Logf("%d messages, %d sent again by the app, %d by the rule", last+1, s.repeats.Load(), len(target.ids)-len(target.values))
	checkValues(t, target.values, last, int(s.repeats.Load()))
	if len(target.faults) > 0 {
		t.Error(target.faults)
	}
}
