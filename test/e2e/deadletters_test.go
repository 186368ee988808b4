package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/streams/subject"
)

// A healthy cluster produces no dead letters: neither the first events of its kube-proxies, through events.k8s.io, nor the
// messages of the other tests. Only TestMalformedMessages_OnEverySubject produces some.
func TestDeadLetters_AreNoneInAHealthyCluster(t *testing.T) {
	api := sharedKube
	for _, edge := range []string{"edge-1", "edge-2"} {
		recordSeries(t, edge)
	}
	for _, edge := range []string{"edge-1", "edge-2"} {
		eventually(t, "an event of events.k8s.io and its repetition are in Kubernetes", func(ctx context.Context) string {
			e, err := api.EventsV1().Events("default").Get(ctx, "series-"+edge, metav1.GetOptions{})
			if err != nil || e.Series == nil || e.Series.Count != 2 || e.Note != "note" {
				return fmt.Sprint(e, err)
			}
			return ""
		})
	}
	_, js := connectAdmin(t)
	dead, err := js.Stream(t.Context(), subject.DeadLetterStream)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); ; seq++ {
		m, err := dead.GetMsg(t.Context(), seq, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		seq = m.Sequence
		about := m.Header.Get("Frond-Subject")
		if strings.HasPrefix(about, "beat.") || strings.HasPrefix(about, "call.") || strings.Contains(about, ".core.configmaps.default.") {
			continue // malformed by a test
		}
		t.Errorf("dead letter %s of %s: %s", m.Subject, about, m.Header.Get("Frond-Reason"))
	}
}

// recordSeries writes an event at a gateway's local API as the newer recorder does, and then updates its series.
func recordSeries(t *testing.T, edge string) {
	t.Helper()
	local, err := kubernetes.NewForConfig(shared.EdgeAPI(edge))
	if err != nil {
		t.Fatal(err)
	}
	events := local.EventsV1().Events("default")
	if _, err := events.Create(t.Context(), &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "series-" + edge, Namespace: "default"}, EventTime: metav1.NowMicro(), Type: corev1.EventTypeNormal, Note: "note",
		ReportingController: "frond.io/e2e", ReportingInstance: "e2e-" + edge, Action: "Test", Reason: "Tested",
		Regarding: corev1.ObjectReference{Kind: "Node", Name: edge, UID: types.UID(edge)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sharedKube.EventsV1().Events("default").Delete(context.WithoutCancel(t.Context()), "series-"+edge, metav1.DeleteOptions{}) // otherwise it expires
	})
	patch := fmt.Sprintf(`{"series":{"count":2,"lastObservedTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	if _, err := events.Patch(t.Context(), "series-"+edge, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
