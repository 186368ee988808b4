package suite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/internal/await"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/internal/powercut"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/streams"
)

// patience is how long everything may take to be as it should again once all faults are healed: many times what it takes.
const patience = 4 * time.Minute

// nodes are the gateways of the cluster.
var nodes = []string{"edge-1", "edge-2", "edge-3"}

// shared is the one cluster of all tests.
var shared *rig

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background() //nolint:forbidigo // a TestMain has no other
	dir := os.Getenv("FROND_FAULTS_DIR")
	keep := dir != ""
	if !keep {
		var err error
		if dir, err = os.MkdirTemp("", "ff-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	cluster, err := devcluster.Up(ctx, devcluster.Options{
		Dir: dir, Talk: os.Stderr, Timeout: 5 * time.Minute,
		Spec: devcluster.Spec{Edges: len(nodes), Cloudcores: 2, Hubs: 3, Runtime: devcluster.Hollow, History: true, NoMetrics: true},
		Programs: func(ctx context.Context, _ devcluster.Spec) (toolchain.Paths, error) {
			return toolchain.Ensure(ctx, toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
		},
	})
	if cluster != nil && !keep {
		defer func() {
			if err := cluster.Down(ctx, false); err != nil {
				fmt.Fprintln(os.Stderr, "down:", err)
			}
		}()
	}
	if err == nil {
		shared, err = newRig(ctx, cluster)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		return 1
	}
	defer shared.nc.Close()
	defer func() {
		if err := shared.unplug(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "unplug:", err)
		}
	}()
	code := m.Run()
	if keep := os.Getenv("FROND_FAULTS_KEEP"); code != 0 && keep != "" {
		if err := shared.keepEvidence(ctx, keep); err != nil {
			fmt.Fprintln(os.Stderr, "keep the evidence:", err)
		}
	}
	return code
}

// rig is the cluster, what the tests ask it with, and who judges it.
type rig struct {
	mu      sync.Mutex // guards cluster: its methods must not run at the same time
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	nc      *nats.Conn
	held    *streams.Publisher
	// deletions and judges know all tests of this process, as the gateways do.
	deletions faults.Deletions
	judges    map[string]*faults.Judge
	read      map[string]int64 // how far each history was judged
	// small are the nodes whose disk can be filled; sockets are the disks of those whose power can be cut.
	small   []string
	sockets map[string]*powercut.FS
	// breaches are those of copies of gateways, until they are told; guarded by mu.
	breaches []string
}

func newRig(ctx context.Context, cluster *devcluster.Cluster) (*rig, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	admin, err := natscontext.NewFromFile(cluster.NATSContext())
	if err != nil {
		return nil, err
	}
	nc, err := admin.Connect(nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		return nil, err
	}
	held, err := streams.NewPublisher(nc, streams.NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		return nil, err
	}
	r := &rig{cluster: cluster, kube: kube, nc: nc, held: held, judges: map[string]*faults.Judge{}, read: map[string]int64{}, sockets: map[string]*powercut.FS{}}
	for _, node := range nodes {
		if err := r.recruit(ctx, node); err != nil {
			return nil, err
		}
	}
	return r, r.populate(ctx)
}

// do runs one call of the cluster.
func (r *rig) do(call func(c *devcluster.Cluster) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return call(r.cluster)
}

func (r *rig) alive(part string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cluster.PID(part) != 0
}

// must runs one call of the cluster that has to succeed.
func (r *rig) must(t *testing.T, call func(c *devcluster.Cluster) error) {
	t.Helper()
	if err := r.do(call); err != nil {
		t.Fatal(err)
	}
}

// relaunch starts whatever does not run, as an operator's supervisor would.
func (r *rig) relaunch(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, part := range r.cluster.Parts() {
		if r.alive(part) {
			continue
		}
		if err := r.do(func(c *devcluster.Cluster) error { return c.Launch(ctx, part) }); err != nil {
			t.Logf("launch: %v", err)
		}
	}
}

// heal ends every fault.
func (r *rig) heal(ctx context.Context, t *testing.T) {
	t.Helper()
	note := func(err error) {
		if err != nil {
			t.Logf("heal: %v", err)
		}
	}
	for _, part := range r.cluster.Parts() {
		if r.alive(part) {
			note(r.do(func(c *devcluster.Cluster) error { return c.Resume(ctx, part) }))
		}
	}
	r.relaunch(ctx, t)
	for _, node := range nodes {
		note(r.do(func(c *devcluster.Cluster) error { return c.FreeDisk(node) }))
	}
	for _, node := range nodes {
		r.eventually(t, "the forwarder takes orders", time.Minute, func(ctx context.Context) string {
			if err := r.do(func(c *devcluster.Cluster) error { return c.Heal(ctx, node) }); err != nil {
				return err.Error()
			}
			return said(r.do(func(c *devcluster.Cluster) error { return c.Shape(ctx, node, fine) }))
		})
	}
}

// said is an error's text, "" for none.
func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// eventually waits until a condition holds; the condition says what is missing, "" when it holds.
func (r *rig) eventually(t *testing.T, what string, limit time.Duration, missing func(ctx context.Context) string) {
	t.Helper()
	await.Until(t, what, limit, 200*time.Millisecond, await.Said(missing))
}

// judge reads what the gateways wrote down since the last time and fails the test for each breach of a promise.
func (r *rig) judge(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	breaches := r.breaches
	r.breaches = nil
	r.mu.Unlock()
	for node := range r.judges {
		lines, next, err := history.Read(r.cluster.History(node), r.read[node])
		if err != nil {
			t.Fatal(err)
		}
		r.read[node] = next
		breaches = append(breaches, r.judges[node].Read(lines)...)
	}
	for _, breach := range breaches {
		t.Error(breach)
		noteBreach(t, fmt.Sprintf("%s: %s", t.Name(), breach))
	}
}

// noteBreach adds a breach to the file that FROND_FAULTS_BREACH names: a test that is run again may pass, a promise stays broken.
func noteBreach(t *testing.T, breach string) {
	t.Helper()
	path := os.Getenv("FROND_FAULTS_BREACH")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = fmt.Fprintln(f, breach)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Error(err)
	}
}

// settle heals everything and waits until Kubernetes, the hub and each gateway agree, then judges.
func (r *rig) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer r.judge(t) // also if the wait fails: a history may tell why
	r.heal(ctx, t)
	began, told := time.Now(), time.Now()
	r.eventually(t, "everything is as it should be", patience, func(ctx context.Context) string {
		r.relaunch(ctx, t)
		missing := r.unsettled(ctx)
		if missing != "" && time.Since(told) > tellEvery {
			told = time.Now()
			t.Logf("not settled after %.0fs: %.500s", time.Since(began).Seconds(), missing)
		}
		return missing
	})
}

// tellEvery is how often settle says what it waits for.
const tellEvery = 5 * time.Second

// unsettled says what is not as it should be.
func (r *rig) unsettled(ctx context.Context) string {
	if missing := r.agreement(ctx); missing != "" {
		return missing
	}
	var faulty []string
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, part := range r.cluster.Parts() {
		if err := r.cluster.Ready(ctx, part); err != nil {
			faulty = append(faulty, err.Error())
		}
	}
	return strings.Join(faulty, "; ")
}
