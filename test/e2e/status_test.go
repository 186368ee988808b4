package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/streams/subject"
)

// frondJSON runs the cluster's frond program, as a user who has sourced its env file.
func frondJSON(ctx context.Context, into any, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Dir(), "bin", "frond"), append(args, "-o", "json")...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "FROND_CLOUDCORE="+shared.Cloudcores())
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("frond %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return json.Unmarshal(out, into)
}

// viewDifferences describes the differences between three views of a gateway: frond sync, the node's consumer, and its own store.
func viewDifferences(ctx context.Context, js jetstream.JetStream, edge string) string {
	var told inspect.Sync
	if err := frondJSON(ctx, &told, "sync", edge); err != nil {
		return err.Error()
	}
	consumer, err := js.Consumer(ctx, subject.DesiredStream, edge)
	if err != nil {
		return err.Error()
	}
	store, err := shared.Store(ctx, edge)
	if err != nil {
		return err.Error()
	}
	p, info := told.Node.Progress, consumer.CachedInfo()
	switch {
	case p == nil || p.Applied == nil || p.Delivered == nil || p.Consumer == nil || told.Node.Heartbeat == nil:
		return fmt.Sprintf("not all is known: %+v, %+v", told.Node, p)
	case *p.Applied != p.Desired || *p.Delivered != p.Desired || !p.Oldest.IsZero() || !p.Complete:
		return fmt.Sprintf("not up to date: %d of %d", *p.Applied, p.Desired)
	case info.NumPending != 0 || info.NumAckPending != 0 || p.Consumer.Pending != 0 || p.Consumer.AckPending != 0:
		return fmt.Sprintf("the consumer has %d pending and %d unacked", info.NumPending, info.NumAckPending)
	case store.Cursor != told.Node.Heartbeat.Cursor:
		return fmt.Sprintf("the store is at %+v, told is %+v", store.Cursor, told.Node.Heartbeat.Cursor)
	case info.AckFloor.Stream > store.Cursor.Sequence || p.Consumer.AckFloor != info.AckFloor.Stream:
		return fmt.Sprintf("acked up to %d, told is %d, the store is at %d", info.AckFloor.Stream, p.Consumer.AckFloor, store.Cursor.Sequence)
	}
	return objectsDiffer(told.Objects, store)
}

func objectsDiffer(told []inspect.Object, store devcluster.StoreContents) string {
	held := map[string]string{}
	for _, o := range store.Objects {
		if o.Sequence != 0 { // objects that the node made itself are not desired state
			held[o.Key().String()] = o.UID + " " + o.Version
		}
	}
	for _, o := range told {
		k := o.Key().String()
		switch {
		case o.State == inspect.Deleting:
			return k + " waits to be purged"
		case o.State != inspect.Synced || o.Acked != o.Desired:
			return fmt.Sprintf("%s is %s, acked %q of %q", k, o.State, o.Acked, o.Desired)
		case held[k] != o.UID+" "+o.Acked:
			return fmt.Sprintf("%s: told %q, the store holds %q", k, o.UID+" "+o.Acked, held[k])
		}
		delete(held, k)
	}
	if len(held) != 0 {
		return fmt.Sprint("only the store holds ", held)
	}
	return ""
}

// TestSync_ViewsAgree: frond sync shows the same as the node's consumer and the gateway's store. While the link is
// cut, frond sync shows a change as missing on the gateway; afterwards all agree again.
func TestSync_ViewsAgree(t *testing.T) {
	const edge = "edge-1"
	_, js := connectAdmin(t)
	applyManifest(t, manyConfigMaps("views", edge, 3))
	awaitRunning(t, "app=views", 1)
	agree := func(when string) {
		t.Helper()
		eventually(t, "the three views agree "+when, func(ctx context.Context) string { return viewDifferences(ctx, js, edge) })
	}
	agree("at first")

	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), edge); err != nil {
			t.Error(err)
		}
	})
	before := storedVersion(t, edge, "views-1")
	if err := shared.Cut(t.Context(), edge, true); err != nil {
		t.Fatal(err)
	}
	if err := setConfigMap(t.Context(), sharedKube, "views-1", "changed while cut off"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change is told as pending and nothing else", func(ctx context.Context) string {
		var told inspect.Sync
		if err := frondJSON(ctx, &told, "sync", edge); err != nil {
			return err.Error()
		}
		for _, o := range told.Objects {
			switch {
			case o.Name == "views-1" && (o.State != inspect.Pending || o.Acked != before):
				return fmt.Sprintf("views-1 is %s, acked %q, before the cut it had %q", o.State, o.Acked, before)
			case o.Name == "views-2" && o.State != inspect.Synced:
				return fmt.Sprintf("views-2 is %s", o.State)
			}
		}
		if p := told.Node.Progress; p == nil || p.Applied == nil || *p.Applied >= p.Desired || p.Oldest.IsZero() {
			return fmt.Sprintf("progress: %+v", p)
		}
		return ""
	})
	eventually(t, "the Node does not say that it is up to date", func(ctx context.Context) string { return checkUpToDate(ctx, edge, "Unknown") })
	var all inspect.Nodes
	if err := frondJSON(t.Context(), &all, "status"); err != nil {
		t.Fatal(err)
	}
	for i := range all.Nodes {
		if n := &all.Nodes[i]; n.Owner == "" || n.Problem != "" {
			t.Errorf("%s: owner %q, problem %q", n.Name, n.Owner, n.Problem)
		}
	}
	if err := shared.Heal(t.Context(), edge); err != nil {
		t.Fatal(err)
	}
	agree("after the cut")
	eventually(t, "the Node says that it is up to date", func(ctx context.Context) string { return checkUpToDate(ctx, edge, "True") })
}

// storedVersion returns the version of a ConfigMap in a gateway's store.
func storedVersion(t *testing.T, edge, name string) string {
	t.Helper()
	held, err := shared.Store(t.Context(), edge)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range held.Objects {
		if o.Resource == "configmaps" && o.Name == name {
			return o.Version
		}
	}
	t.Fatalf("%s does not hold %s", edge, name)
	return ""
}

// checkUpToDate compares the status of a Node's condition.
func checkUpToDate(ctx context.Context, edge string, want corev1.ConditionStatus) string {
	c, err := nodeCondition(ctx, edge, "EdgeUpToDate")
	if err != nil {
		return err.Error()
	}
	if c.Status != want {
		return fmt.Sprintf("it says %q", c.Status)
	}
	return ""
}

// TestStatus_EitherCloudcoreAnswers: the command works although the first cloudcore is dead.
func TestStatus_EitherCloudcoreAnswers(t *testing.T) {
	t.Cleanup(func() {
		if err := shared.Start(context.WithoutCancel(t.Context()), "cloudcore-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Kill(t.Context(), "cloudcore-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other cloudcore tells, and owns all nodes", func(ctx context.Context) string {
		var all inspect.Nodes
		if err := frondJSON(ctx, &all, "status"); err != nil {
			return err.Error()
		}
		for i := range all.Nodes {
			if n := &all.Nodes[i]; n.Owner != "cloudcore-2" {
				return n.Name + " is owned by " + n.Owner
			}
		}
		return ""
	})
}
