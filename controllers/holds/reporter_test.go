package holds_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/holds"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// startReporter starts a Reporter with exactly the rights it names; it ends with the test.
func startReporter(t *testing.T, owns func(string) bool) *holds.Reporter {
	t.Helper()
	config := shared.Cluster(t).ConfigWithRules(t, "frond-holds-test", holds.Rules())
	objects, err := cache.New(config, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	teller := holds.New(client, objects, owns, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return teller.Start(gctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("teller: %v", err)
		}
	})
	return teller
}

func newNode(t *testing.T) (kubernetes.Interface, string) {
	t.Helper()
	cluster := shared.Cluster(t)
	client, name := cluster.Client(t), cluster.Namespace(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	})
	return client, name
}

// eventuallyCondition waits until the Node has the condition.
func eventuallyCondition(t *testing.T, client kubernetes.Interface, name string, status corev1.ConditionStatus, reason, token string) (node *corev1.Node) {
	t.Helper()
	kit.Succeeds(t, time.Minute, func() (err error) {
		if node, err = client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if hold, _ := wire.ParseHold(node.Annotations); hold.Token != token {
			return fmt.Errorf("annotations %v", node.Annotations)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == names.ConditionDeletionsHeld && c.Status == status && c.Reason == reason && !c.LastTransitionTime.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, want %s %s", node.Status.Conditions, status, reason)
	})
	return node
}

func TestReporter_WritesAndClearsHold(t *testing.T) {
	client, name := newNode(t)
	var other atomic.Bool
	first := startReporter(t, func(string) bool { return !other.Load() })
	hold := wire.Hold{Token: "0123456789", Reason: wire.HoldMassDelete, Missing: 6, Pods: 8, MissingSample: []string{"a/b"}}
	first.Report(name, &hold)
	node := eventuallyCondition(t, client, name, corev1.ConditionTrue, "MassDelete", hold.Token)
	before, _ := wire.ParseHold(node.Annotations)
	if time.Since(before.Since) > time.Minute {
		t.Errorf("since %v", before.Since)
	}
	var event *corev1.Event
	kit.Succeeds(t, time.Minute, func() (err error) {
		event, err = client.CoreV1().Events("default").Get(t.Context(), name+"."+hold.Token, metav1.GetOptions{})
		return err
	})
	if event.Reason != "DeletionsHeld" || event.InvolvedObject.UID != node.UID || !strings.Contains(event.Message, "6 of 8") ||
		!strings.Contains(event.Message, "frond confirm "+name) || !strings.Contains(event.Message, hold.Token) {
		t.Errorf("event %+v", event)
	}

	// The next owner reports the same hold: nothing changes, including its time; then a larger one.
	other.Store(true)
	second := startReporter(t, func(string) bool { return other.Load() })
	second.Report(name, &hold)
	greater := hold
	greater.Token, greater.Missing = "abcdefabcd", 7
	second.Report(name, &greater)
	eventuallyCondition(t, client, name, corev1.ConditionTrue, "MassDelete", greater.Token)
	first.Report(name, nil) // this replica has nothing more to report

	second.Report(name, nil)
	node = eventuallyCondition(t, client, name, corev1.ConditionFalse, "NothingHeld", "")
	if len(node.Annotations) != 0 {
		t.Errorf("annotations left: %v", node.Annotations)
	}
}

func TestReporter_KeepsStartTimeOfHold(t *testing.T) {
	client, name := newNode(t)
	hold := wire.Hold{Token: "0123456789", Reason: wire.HoldRestored, Missing: 1, Pods: 8, Since: time.Now().Add(-time.Hour).UTC().Truncate(time.Second)}
	value, err := json.Marshal(hold)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Annotations = map[string]string{names.AnnotationHeldDeletions: string(value), names.AnnotationConfirmDeletions: "old"}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	told := hold
	told.Since, told.Pods = time.Time{}, 9
	teller := startReporter(t, func(string) bool { return true })
	teller.Report(name, &told)
	kit.Succeeds(t, time.Minute, func() error {
		node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, _ := wire.ParseHold(node.Annotations)
		if got.Pods != 9 {
			return errors.New("not yet told")
		}
		if !got.Since.Equal(hold.Since) {
			t.Errorf("since %v, want %v", got.Since, hold.Since)
		}
		return nil
	})
	teller.Report(name, nil)
	node = eventuallyCondition(t, client, name, corev1.ConditionFalse, "NothingHeld", "")
	if len(node.Annotations) != 0 {
		t.Errorf("annotations left: %v", node.Annotations)
	}
}
