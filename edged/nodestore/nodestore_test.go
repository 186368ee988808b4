package nodestore_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/nodestore"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func configMap(name, version string, seq uint64) wire.Message {
	return wire.Message{
		Key: wire.Key{Resource: "configmaps", Namespace: "default", Name: name}, Op: wire.Apply, UID: "uid-" + name, Version: version, Sequence: seq,
		Object: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"default","uid":"uid-%s","resourceVersion":%q}}`, name, name, version),
	}
}

// A full snapshot of a stream that the store has followed counts what it changes, and the history has each change and ack.
func TestRecorder_CountsRepairsAndRecordsChanges(t *testing.T) {
	js, err := jetstream.New(leaftest.StartLeaf(t, leaf.Config{}).Client())
	kit.Must(t, err)
	st, err := store.Open(t.Context(), js, store.Config{}, zaptest.NewLogger(t))
	kit.Must(t, err)
	metrics, file := prometheus.NewRegistry(), filepath.Join(t.TempDir(), "history")
	r, err := nodestore.NewRecorder(nodestore.NewAudited(st, metrics), file, zaptest.NewLogger(t))
	kit.Must(t, err)
	kit.Must(t, r.Replace(t.Context(), []wire.Message{configMap("a", "1", 1), configMap("b", "1", 2)}, "s1", 2))
	kit.Must(t, r.Apply(t.Context(), []wire.Message{configMap("c", "1", 3)}, 3))
	r.RecordAck(3)
	kit.Must(t, r.Replace(t.Context(), []wire.Message{configMap("a", "2", 4), configMap("c", "1", 3), configMap("d", "1", 5)}, "s1", 5))
	kit.Must(t, testutil.GatherAndCompare(metrics, strings.NewReader(`# HELP frond_audit_repaired_total Objects that differed from a full snapshot of a stream that the store had followed, and were repaired.
# TYPE frond_audit_repaired_total counter
frond_audit_repaired_total 3
`)))
	lines, _, err := history.Read(file, 0)
	kit.Must(t, err)
	var got []string
	for _, line := range lines {
		got = append(got, fmt.Sprint(line.Op, " ", line.Cursor.Sequence, " with ", len(line.Objects)))
	}
	want := []string{"opened 0 with 0", "replaced 2 with 2", "applied 3 with 1", "acked 3 with 0", "replaced 5 with 3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}
