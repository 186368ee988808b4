package desired_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// TestEngine_ProgressCountsMissingChanges compares with the stream, for a node that existed before this engine and has none of it.
func TestEngine_ProgressCountsMissingChanges(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.createConfigMap("used", "1")
	first := w.startEngine(desired.Config{}, &fakeOwnership{}, "first")
	w.createPod("one", node, mountConfigMap("used"))
	used := coreKey("configmaps", w.ns, "used")
	w.eventuallyMessage(node, used, "published", isApplied)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "one"), "published", isApplied)

	for what, engine := range map[string]*desired.Engine{"who published": first, "who read": w.startEngine(desired.Config{}, &fakeOwnership{}, "second")} {
		kubetest.Eventually(t, 30*time.Second, func() error {
			held := w.heldMessages(node)
			last, want := uint64(0), 0
			oldest := time.Now()
			for key, m := range held {
				last = max(last, m.Sequence)
				if key == wire.SnapshotMarker() {
					continue
				}
				want++
				if m.Time.Before(oldest) {
					oldest = m.Time
				}
			}
			behind, since, known := engine.Progress(node, 0)
			if !known || behind != want || !since.Equal(oldest) {
				return fmt.Errorf("%s: %d behind since %v, known %v, want %d since %v", what, behind, since, known, want, oldest)
			}
			if behind, _, known = engine.Progress(node, held[used].Sequence); !known || behind >= want {
				return fmt.Errorf("%s: %d behind after one was applied", what, behind)
			}
			if behind, since, known = engine.Progress(node, last); !known || behind != 0 || !since.IsZero() {
				return fmt.Errorf("%s: %d behind since %v, known %v, with all applied", what, behind, since, known)
			}
			return nil
		})
	}
	if _, _, known := first.Progress("nobody", 0); known {
		t.Error("the progress of a node that does not exist is known")
	}
}

// TestEngine_MessageNamesAckedVersion: a change of an object that is on disk names that version; a change of one that
// is not, the version before.
func TestEngine_MessageNamesAckedVersion(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.createConfigMap("used", "1")
	engine := w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	w.createPod("one", node, mountConfigMap("used"))
	used := coreKey("configmaps", w.ns, "used")
	first := w.eventuallyMessage(node, used, "published", isApplied)
	if first.Acked != "" {
		t.Errorf("the first version is told to replace %q on disk", first.Acked)
	}
	engine.RecordAck(node, first.Sequence)
	w.setConfigMap("used", "2")
	second := w.eventuallyMessage(node, used, "changed", func(m wire.Message) bool { return m.Version != first.Version })
	w.setConfigMap("used", "3")
	third := w.eventuallyMessage(node, used, "changed again", func(m wire.Message) bool { return m.Version != second.Version && m.Version != first.Version })
	for _, m := range []wire.Message{second, third} {
		if m.Acked != first.Version {
			t.Errorf("version %s is told to replace %q on disk, want %q", m.Version, m.Acked, first.Version)
		}
	}
}
