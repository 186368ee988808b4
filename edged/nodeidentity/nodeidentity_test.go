package nodeidentity_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/edged/nodeidentity"
	"github.com/frond-edge/frond/test/kit"
)

// A node whose identity is damaged runs without it, and reports that; any other fault ends it, as it may be gone at the next start.
func TestLoad_DamagedIdentityIsNoFault(t *testing.T) {
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
			dir := t.TempDir()
			kit.Must(t, tt.breaks(dir))
			identity, err := nodeidentity.Load(enroll.Config{Node: "edge-1", Dir: dir, Metrics: prometheus.NewRegistry()}, zaptest.NewLogger(t))
			if !tt.runs {
				if err == nil || errors.Is(err, identitydir.ErrDamaged) {
					t.Errorf("error: %v", err)
				}
				return
			}
			kit.Must(t, err)
			if ready := identity.CheckReady(); !errors.Is(ready, identitydir.ErrDamaged) {
				t.Errorf("ready: %v", ready)
			}
		})
	}
}
