package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/agent"
	"github.com/frond-edge/frond/test/kit"
)

// A gateway's keys are in folders that no other user may enter, even if they had been opened before.
func TestNode_ClosesKeyFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cfg := config.EdgeCore{Node: "edge-1", Dir: dir, Listen: "127.0.0.1:0"}
	cfg.Hub = config.EdgeHub{URLs: []string{"tls://hub:7422"}}
	cfg.Runtime.Hollow = true
	cfg.LocalAPI.Socket = filepath.Join(dir, "api.sock")
	cfg.Kubelet.StaticPodPath = filepath.Join(dir, "manifests")
	folders := []string{dir, filepath.Join(dir, "identity")}
	for _, opened := range append([]string{""}, folders...) {
		if opened != "" {
			kit.Must(t, os.Chmod(opened, 0o755)) //nolint:gosec // that is what is tested
		}
		if _, err := agent.New(cfg, nil, prometheus.NewRegistry(), zaptest.NewLogger(t)); err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: mode %v, %v; want 0700", folder, info.Mode(), err)
			}
		}
	}
}
