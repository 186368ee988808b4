package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/test/kit"
)

// A kubelet that starts on a store whose newest pods were lost by the disk does not stop the containers of any of them.
func TestNode_DamagedStoreEndsNoContainer(t *testing.T) {
	dir := t.TempDir()
	storePods(t, dir, nil)
	runtime := startRuntime(t, dir)
	kill := startAgent(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint()}, nil)
	before := runtime.awaitContainers(t)
	kill()

	blocks, err := filepath.Glob(filepath.Join(dir, "nats/jetstream/*/streams/KV_store/msgs/*.blk"))
	kit.Must(t, err)
	for _, b := range blocks {
		data, err := os.ReadFile(b)
		kit.Must(t, err)
		i := strings.Index(string(data), `"name":"pod-b"`) // the first: the newest may not be acked
		if i < 0 {
			continue
		}
		data[i] ^= 1
		kit.Must(t, os.WriteFile(b, data, 0o600))
		// As if the server had not yet written its index: the remainder then looks whole to it.
		kit.Must(t, os.Remove(filepath.Join(filepath.Dir(b), "index.db")))
	}
	log := &logBuffer{}
	startAgent(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint()}, log)
	kit.Succeeds(t, time.Minute, func() error { return log.contains("store damaged") })
	kit.Succeeds(t, time.Minute, func() error { return log.contains("Starting to sync pod status") })
	runtime.wantUnchanged(t, before, 15*time.Second)
}
