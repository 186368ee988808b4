package exercise_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/exercise"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/plan"
)

func newRunner() *exercise.Runner {
	return exercise.New(plan.Plan{AllServices: true}, "r1", "loadtest-r1", nil, nil, zap.NewNop())
}

// What a phase kills is started again at its end, after a failure, and after an interrupt. Arguments are not read by a shell.
func TestKill_Restores(t *testing.T) {
	minute := metav1.Duration{Duration: time.Minute}
	for name, tt := range map[string]struct {
		command     []string
		interrupted bool
		fails       string
	}{
		"killed":      {command: []string{"touch", "$HOME; killed"}},
		"fails":       {command: []string{"ls", "/there/is/no/such"}, fails: "/there/is/no/such"},
		"interrupted": {command: []string{"sleep", "3600"}, interrupted: true, fails: "sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.interrupted {
				cancel()
			}
			err := newRunner().CarryOut(ctx, plan.Phase{Kill: &plan.Kill{Command: tt.command, Restore: []string{"touch", "restored"}}, Timeout: minute})
			if (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("error %v, want %q", err, tt.fails)
			}
			if _, err := os.Stat(filepath.Join(dir, "restored")); err != nil {
				t.Errorf("not restored: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "$HOME; killed")); (err == nil) != (name == "killed") {
				t.Errorf("killed: %v", err)
			}
		})
	}
}

// A move of an endpoint ends with the EndpointSlice that has its address, or one of a later move. Each message that is stored is counted.
func TestObserve_EndsMovesOfEndpoints(t *testing.T) {
	r, into := newRunner(), measure.NewHistogram(time.Now())
	r.BeginMove("lt-1", "service-00007", 70_000, into)
	address := r.BeginMove("lt-1", "service-00007", 70_001, into)
	r.BeginMove("lt-2", "service-00007", 70_001, into)
	slice := func(namespace, object string) wire.Message {
		return wire.Message{
			Key: wire.Key{Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: namespace, Name: "service-00007"}, Op: wire.Apply, Object: []byte(object),
		}
	}
	for _, object := range []string{`{"endpoints":[]}`, `[]`, `{"endpoints":[{"addresses":["fd00::1"]}]}`, `{"endpoints":[{"addresses":["192.0.2.1"]}]}`} {
		r.Observe("lt-1", slice("loadtest-r1", object), time.Now())
	}
	r.Observe("lt-1", slice("other", `{"endpoints":[{"addresses":["`+address+`"]}]}`), time.Now())
	if messages, outstanding := r.Progress(); messages != 5 || outstanding != 3 {
		t.Errorf("%d messages, %d moves have not ended", messages, outstanding)
	}
	r.Observe("lt-1", slice("loadtest-r1", `{"endpoints":[{"addresses":["`+address+`"]}]}`), time.Now())
	if _, outstanding := r.Progress(); outstanding != 1 || into.Summary().Count != 2 {
		t.Errorf("%d moves have not ended, %d have", outstanding, into.Summary().Count)
	}
}
