package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/agent"
	"github.com/frond-edge/frond/edged/identitydir"
)

// A node whose identity is damaged runs without it, and reports that; any other fault ends it, as it may be gone at the next start.
func TestNode_RunsWithoutDamagedIdentity(t *testing.T) {
	for name, tt := range map[string]struct {
		breaks func(dir string) error
		runs   bool
	}{
		"not a key": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "node.nk"), []byte("SU"), 0o600) }, true},
		"no key": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "enrolment.json"), []byte(`{"node":"edge-1","key":"U"}`), 0o600)
		}, true},
		"half a record": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "enrolment.json"), []byte(`{"no`), 0o600)
		}, true},
		"a fault": {func(dir string) error { return os.Symlink("node.nk", filepath.Join(dir, "node.nk")) }, false},
		"another name": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "enrolment.json"), []byte(`{"node":"edge-2"}`), 0o600)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.EdgeCore{Node: "edge-1", Dir: t.TempDir()}
			dir := filepath.Join(cfg.Dir, "identity")
			if err := errors.Join(os.Mkdir(dir, 0o700), tt.breaks(dir)); err != nil {
				t.Fatal(err)
			}
			ready, err := agent.LoadIdentity(cfg, zaptest.NewLogger(t))
			if tt.runs && (err != nil || !errors.Is(ready, identitydir.ErrDamaged)) || !tt.runs && (err == nil || errors.Is(err, identitydir.ErrDamaged)) {
				t.Errorf("ready: %v, error: %v", ready, err)
			}
		})
	}
}
