package leaf

import (
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// countingRemote is a hub whose link is as set, and which counts dials.
type countingRemote struct {
	id     uint64
	server string
	dials  int
}

func (r *countingRemote) connection() (uint64, string)  { return r.id, r.server }
func (r *countingRemote) messagesReceived(uint64) int64 { return 0 }
func (r *countingRemote) closeLink(uint64)              {}
func (r *countingRemote) replaceRemote() error {
	r.dials++
	return nil
}

// A link to a hub server that has announced its stop is dialled again as soon as it is lost; one to any other server waits for its turn, as all
// gateways of a server that died would dial together.
func TestLinkSupervisor_StoppingServerIsLeftAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		announced string
		before    time.Duration
		dials     int
	}{
		"its own server":   {"hub-1", time.Second, 1},
		"another server":   {"hub-2", time.Second, 0},
		"nothing":          {"", 0, 0},
		"another restart":  {"hub-1", time.Hour, 0},
		"no name is known": {"", time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := New(Config{Node: "edge-1", Dir: t.TempDir()}, zaptest.NewLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			remote := &countingRemote{id: 7, server: "hub-1"}
			if name == "no name is known" {
				remote.server = ""
			}
			supervisor := newLinkSupervisor(server.cfg, remote, server, server.metrics, server.log)
			now := time.Now()
			supervisor.checkLink(now)
			supervisor.checkLink(now)
			if !server.Link().Up {
				t.Fatal("there is no link")
			}
			if tt.before > 0 {
				server.stops.set(tt.announced, now.Add(-tt.before))
			}
			remote.id = 0
			supervisor.checkLink(now)
			if remote.dials != tt.dials {
				t.Errorf("dialled %d times, want %d", remote.dials, tt.dials)
			}
			remote.id = 8 // the server's next process
			supervisor.checkLink(now)
			supervisor.checkLink(now)
			remote.id = 0
			supervisor.checkLink(now)
			if remote.dials != tt.dials && remote.server == tt.announced {
				t.Errorf("an announcement counts for the next process: dialled %d times", remote.dials)
			}
		})
	}
}
