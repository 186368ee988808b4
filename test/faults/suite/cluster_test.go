package suite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/faultfs"
	"github.com/frond-edge/frond/test/faults"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/clustertest"
)

// waitTimeout bounds the time from the end of all faults to a settled cluster: many times what it takes.
const waitTimeout = 4 * time.Minute

// nodes are the gateways of the cluster.
var nodes = []string{"edge-1", "edge-2", "edge-3"}

// partitionCount is the number of partitions of the cluster. With four, each of the nodes is in one of its own; FROND_FAULTS_PARTITIONS=1
// measures a hub that has one.
func partitionCount() int {
	if n, err := strconv.Atoi(os.Getenv("FROND_FAULTS_PARTITIONS")); err == nil {
		return n
	}
	return 4
}

// layoutOf returns the layout of a cluster's hub, whose servers have four cells.
func layoutOf(cluster *devcluster.Cluster) subject.Layout {
	return subject.Layout{Cells: 4, Partitions: cluster.Spec().Partitions}
}

// shared is the one cluster of all tests.
var shared *testCluster

func TestMain(m *testing.M) {
	os.Exit(clustertest.Suite{
		DirVariable: "FROND_FAULTS_DIR", Prefix: "ff-",
		Spec: devcluster.Spec{Edges: len(nodes), Cloudcores: 2, Hubs: 3, Partitions: partitionCount(), Runtime: devcluster.Hollow, History: true, NoMetrics: true},
		Prepare: func(ctx context.Context, cluster *devcluster.Cluster) (err error) {
			shared, err = newTestCluster(ctx, cluster)
			return err
		},
		Finish: finishTests,
	}.Run(m))
}

// finishTests keeps the evidence of a failure and disconnects from the cluster.
func finishTests(ctx context.Context, code int) {
	if keep := os.Getenv("FROND_FAULTS_KEEP"); code != 0 && keep != "" {
		if err := shared.keepEvidence(ctx, keep); err != nil {
			fmt.Fprintln(os.Stderr, "keep the evidence:", err)
		}
	}
	if err := shared.unmountDisks(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "unplug:", err)
	}
	shared.nc.Close()
}

// testCluster is the cluster with the tests' clients and history checkers.
type testCluster struct {
	mu        sync.Mutex // guards cluster: its methods must not run at the same time
	cluster   *devcluster.Cluster
	kube      kubernetes.Interface
	nc        *nats.Conn
	publisher *publish.Publisher
	// deletions and checkers span all tests of this process, as the gateways' histories do.
	deletions     faults.Deletions
	checkers      map[string]*faults.HistoryChecker
	checkedOffset map[string]int64 // how far each history was checked
	// smallDisks are the nodes whose disk can be filled; powercutDisks are the disks of those whose power can be cut.
	smallDisks    []string
	powercutDisks map[string]*faultfs.FS
	// breaches are violations of copies of gateways that are not reported yet; guarded by mu.
	breaches []string
}

func newTestCluster(ctx context.Context, cluster *devcluster.Cluster) (*testCluster, error) {
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
	held, err := publish.NewPublisher(nc, layoutOf(cluster), metrics.New(prometheus.NewRegistry()))
	if err != nil {
		return nil, err
	}
	r := &testCluster{cluster: cluster, kube: kube, nc: nc, publisher: held, checkers: map[string]*faults.HistoryChecker{}, checkedOffset: map[string]int64{}, powercutDisks: map[string]*faultfs.FS{}}
	for _, node := range nodes {
		if err := r.prepareNode(ctx, node); err != nil {
			return nil, err
		}
	}
	return r, r.createAnchors(ctx)
}

// withCluster runs one call of the cluster with mu held.
func (r *testCluster) withCluster(call func(c *devcluster.Cluster) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return call(r.cluster)
}

func (r *testCluster) isRunning(part string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cluster.PID(part) != 0
}

// mustCluster runs one call of the cluster that must succeed.
func (r *testCluster) mustCluster(t *testing.T, call func(c *devcluster.Cluster) error) {
	t.Helper()
	if err := r.withCluster(call); err != nil {
		t.Fatal(err)
	}
}

// relaunchStopped starts every stopped process, as a supervisor would.
func (r *testCluster) relaunchStopped(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, part := range r.cluster.Components() {
		if r.isRunning(part) {
			continue
		}
		if err := r.withCluster(func(c *devcluster.Cluster) error { return c.Launch(ctx, part) }); err != nil {
			t.Logf("launch: %v", err)
		}
	}
}

// healAll ends every fault.
func (r *testCluster) healAll(ctx context.Context, t *testing.T) {
	t.Helper()
	note := func(err error) {
		if err != nil {
			t.Logf("heal: %v", err)
		}
	}
	for _, part := range r.cluster.Components() {
		if r.isRunning(part) {
			note(r.withCluster(func(c *devcluster.Cluster) error { return c.Resume(ctx, part) }))
		}
	}
	r.relaunchStopped(ctx, t)
	for _, node := range nodes {
		note(r.withCluster(func(c *devcluster.Cluster) error { return c.FreeDisk(node) }))
	}
	for _, node := range nodes {
		r.eventually(t, "the forwarder takes orders", time.Minute, func(ctx context.Context) string {
			if err := r.withCluster(func(c *devcluster.Cluster) error { return c.Heal(ctx, node) }); err != nil {
				return err.Error()
			}
			return errorText(r.withCluster(func(c *devcluster.Cluster) error { return c.Shape(ctx, node, perfectLink) }))
		})
	}
}

// errorText returns an error's text, "" for none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// eventually waits until a condition holds; missing describes what is missing, "" when it holds.
func (r *testCluster) eventually(t *testing.T, what string, limit time.Duration, missing func(ctx context.Context) string) {
	t.Helper()
	kit.Until(t, what, limit, 200*time.Millisecond, kit.FromText(missing))
}

// checkHistories reads the new lines of the gateways' histories and fails the test for each violation of a promise.
func (r *testCluster) checkHistories(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	breaches := r.breaches
	r.breaches = nil
	r.mu.Unlock()
	for node := range r.checkers {
		lines, next, err := history.Read(r.cluster.History(node), r.checkedOffset[node])
		if err != nil {
			t.Fatal(err)
		}
		r.checkedOffset[node] = next
		breaches = append(breaches, r.checkers[node].Check(lines)...)
	}
	for _, breach := range breaches {
		t.Error(breach)
		recordBreach(t, fmt.Sprintf("%s: %s", t.Name(), breach))
	}
}

// recordBreach adds a violation to the file that FROND_FAULTS_BREACH names: a rerun test may pass, a promise stays broken.
func recordBreach(t *testing.T, breach string) {
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

// awaitSettled heals everything, waits until Kubernetes, the hub and each gateway agree, then checks the histories.
func (r *testCluster) awaitSettled(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	defer r.checkHistories(t) // also if the wait fails: a history may show the reason
	r.healAll(ctx, t)
	began, told := time.Now(), time.Now()
	r.eventually(t, "everything is as it should be", waitTimeout, func(ctx context.Context) string {
		r.relaunchStopped(ctx, t)
		missing := r.findUnsettled(ctx)
		if missing != "" && time.Since(told) > logInterval {
			told = time.Now()
			t.Logf("not settled after %.0fs: %.500s", time.Since(began).Seconds(), missing)
		}
		return missing
	})
}

// logInterval is the interval at which awaitSettled logs what it waits for.
const logInterval = 5 * time.Second

// findUnsettled describes what is not settled.
func (r *testCluster) findUnsettled(ctx context.Context) string {
	if missing := r.findDisagreement(ctx); missing != "" {
		return missing
	}
	var faulty []string
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, part := range r.cluster.Components() {
		if err := r.cluster.Ready(ctx, part); err != nil {
			faulty = append(faulty, err.Error())
		}
	}
	return strings.Join(faulty, "; ")
}
