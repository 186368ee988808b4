package topology_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// fillOutbox returns a folder with seven reports, p0 to p6.
func fillOutbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l, o, _ := streamstest.StartOutbox(t, dir)
	for i := range 20 {
		if err := o.Report(t.Context(), streamstest.PodReport(fmt.Sprint("p", i%7))); err != nil {
			t.Fatal(err)
		}
	}
	l.Stop()
	return dir
}

// If only the pump's own state is damaged, the waiting reports are kept.
func TestEnsureLeaf_SalvagesReports(t *testing.T) {
	dir := fillOutbox(t)
	for _, file := range leaftest.Files(t, dir) {
		if strings.HasSuffix(file, subject.OutboxStream+"/obs/pump/o.dat") {
			leaftest.Damages()[4].Apply(t, filepath.Join(dir, file))
		}
	}
	l, _, js := streamstest.StartOutbox(t, dir)
	s, err := js.Stream(t.Context(), subject.OutboxStream)
	if err != nil {
		t.Fatal(err)
	}
	if state := s.CachedInfo().State; state.Msgs != 7 || state.FirstSeq < 1e12 {
		t.Errorf("state %+v of the outbox, want seven reports with new sequences", state)
	}
	if !isOffered(t, js, "p6") {
		t.Error("a report was lost with the pump's state")
	}
	l.Stop()
}

// Whatever a disk does to one of the outbox's files, the node starts, and new reports wait for the hub. Earlier reports may be lost with
// the disk; the node reports its state again at each link-up.
func TestEnsureLeaf_RecoversFromDamagedFiles(t *testing.T) {
	image := fillOutbox(t)
	for _, file := range leaftest.Files(t, image) {
		if strings.Contains(file, subject.OutboxEventsStream) {
			continue // the same kind of files
		}
		for _, damage := range leaftest.Damages() {
			t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file)+"/"+damage.Name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(image)); err != nil {
					t.Fatal(err)
				}
				damage.Apply(t, filepath.Join(dir, file))
				l, o, js := streamstest.StartOutbox(t, dir)
				if strings.Contains(file, "/obs/") {
					l.Stop()
					_, o, js = streamstest.StartOutbox(t, dir) // the recreated stream is found again
				}
				if err := o.Report(t.Context(), streamstest.PodReport("new")); err != nil {
					t.Fatalf("report: %v", err)
				}
				if !isOffered(t, js, "new") {
					t.Error("the new report is not offered to the pump")
				}
			})
		}
	}
}

// isOffered reports whether the pump's consumer delivers a report of this name.
func isOffered(t *testing.T, js jetstream.JetStream, name string) bool {
	t.Helper()
	c, err := js.Consumer(t.Context(), subject.OutboxStream, "pump")
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := c.Next(jetstream.FetchMaxWait(20 * time.Second))
		if err != nil {
			t.Logf("next: %v", err)
			return false
		}
		if strings.HasSuffix(m.Subject(), "."+name) {
			return true
		}
	}
}
