package leaf_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// What the cloud told outlives a restart, is bounded, never goes below the configured pause, and can become shorter again.
func TestServer_RemembersRedialMax(t *testing.T) {
	cfg := leaf.Config{Node: "edge-1", Dir: t.TempDir(), RedialMin: time.Second, RedialMax: 15 * time.Second}
	for _, step := range []struct{ told, want time.Duration }{
		{0, 15 * time.Second}, // nothing yet
		{40 * time.Second, 40 * time.Second},
		{24 * time.Hour, 5 * time.Minute},
		{time.Second, 15 * time.Second},
	} {
		l := leaftest.StartLeaf(t, cfg)
		if step.told > 0 {
			l.SetRedialMax(step.told)
		}
		if got := l.RedialMax(); got != step.want {
			t.Errorf("told %v: %v, want %v", step.told, got, step.want)
		}
		l.Stop()
		again := leaftest.StartLeaf(t, cfg)
		if got := again.RedialMax(); got != step.want {
			t.Errorf("told %v, after a restart: %v, want %v", step.told, got, step.want)
		}
		again.Stop()
	}
}

// A damaged or enormous file, or one that cannot be written, costs only what was remembered.
func TestServer_DamagedRedialMaxIsIgnored(t *testing.T) {
	for name, content := range map[string]string{"garbage": "\x00{", "negative": "-4s", "empty": "", "large": string(make([]byte, 1<<20)), "bounded": "900h"} {
		t.Run(name, func(t *testing.T) {
			cfg := leaf.Config{Node: "edge-1", Dir: t.TempDir(), RedialMin: time.Second, RedialMax: 15 * time.Second}
			if err := os.WriteFile(filepath.Join(cfg.Dir, "redial-max"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			l := leaftest.StartLeaf(t, cfg)
			want := 15 * time.Second
			if name == "bounded" {
				want = 5 * time.Minute
			}
			if got := l.RedialMax(); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}
