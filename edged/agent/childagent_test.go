package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/hollow/hollowtest"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/merge"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// childOrder, if set, makes the test binary a gateway's agent without a link: a process can run one kubelet only.
const childOrder = "FROND_EDGENODE_CHILD"

// agentOrder is the task of the agent.
type agentOrder struct {
	Dir, Endpoint string
	Port          int
	// Token is the cloud's answer to a token request; "" for a gateway without a link.
	Token string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childOrder); text != "" {
		if err := runAgent(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runAgent(text string) error {
	var o agentOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // the main function of a child process
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	l, err := leaf.New(leaf.Config{Node: "edge-1", Dir: filepath.Join(o.Dir, "nats"), Reserve: -1}, log)
	if err != nil {
		return err
	}
	g.Go(func() error { return l.Start(ctx) })
	select {
	case <-l.Ready():
	case <-ctx.Done():
		return g.Wait()
	}
	nc, err := l.Conn("test")
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := topology.EnsureLeaf(ctx, js, log); err != nil {
		return err
	}
	st, err := openStore(ctx, js, o.Dir, log)
	if err != nil {
		return err
	}
	outbox, err := outbox.New("edge-1", st.Cursor().StoreEpoch, nc)
	if err != nil {
		return err
	}
	api, err := localapi.New(localapi.Config{Node: "edge-1"}, st, tokenCloud(o.Token), outbox, log)
	if err != nil {
		return err
	}
	cfg := kubelet.Config{
		Node: "edge-1", Dir: filepath.Join(o.Dir, "kubelet"), RuntimeEndpoint: o.Endpoint, Hollow: true, Port: o.Port,
		DropIn: []byte("syncFrequency: 1s"),
	}
	cert, err := kubelet.NewServingCert(kubelet.ServingCertConfig{Node: cfg.Node, Dir: cfg.Dir}, log)
	if err != nil {
		return err
	}
	node, err := kubelet.New(cfg, cert, api.ClientConfig(), log)
	if err != nil {
		return err
	}
	g.Go(func() error { return api.Start(ctx) })
	g.Go(func() error { return node.Start(ctx) })
	return g.Wait()
}

func openStore(ctx context.Context, js jetstream.JetStream, dir string, log *zap.Logger) (*store.Store, error) {
	return store.Open(ctx, js, store.Config{Merge: merge.Desired, HighWaterFile: filepath.Join(dir, "store.mark")}, log)
}

// storePods creates a store with three pods, created one after the other; change, unless it is nil, changes each first.
func storePods(t *testing.T, dir string, change func(*corev1.Pod)) {
	t.Helper()
	l := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(dir, "nats")})
	defer l.Stop()
	js, err := jetstream.New(l.Client())
	kit.Must(t, err)
	st, err := openStore(t.Context(), js, dir, zaptest.NewLogger(t))
	kit.Must(t, err)
	kit.Must(t, st.Replace(t.Context(), nil, "s1", 1))
	for i, name := range []string{"pod-a", "pod-b", "pod-c"} {
		no, grace := false, int64(1)
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: "1", CreationTimestamp: metav1.Now()},
			Spec: corev1.PodSpec{
				NodeName: "edge-1", RestartPolicy: corev1.RestartPolicyAlways, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
				EnableServiceLinks: &no, DNSPolicy: corev1.DNSDefault, // set by an apiserver
				Containers: []corev1.Container{{Name: "c", Image: "nginx", ImagePullPolicy: corev1.PullIfNotPresent}},
			},
		}
		if change != nil {
			change(pod)
		}
		data, err := json.Marshal(pod)
		kit.Must(t, err)
		seq := uint64(i) + 2 //nolint:gosec // a small number
		kit.Must(t, st.Apply(t.Context(), []wire.Message{{
			Key: wire.Key{Resource: "pods", Namespace: "default", Name: name}, Op: wire.Apply, UID: "uid-" + name, Version: "1", Object: data, Sequence: seq,
		}}, seq))
	}
}

// containerRuntime is a hollow runtime that outlives the agents.
type containerRuntime struct {
	*hollow.Runtime
	cri runtimeapi.RuntimeServiceClient
}

func startRuntime(t *testing.T, dir string) *containerRuntime {
	t.Helper()
	runtime, err := hollow.New(hollow.Config{Socket: filepath.Join(t.TempDir(), "cri.sock"), Dir: dir}, zaptest.NewLogger(t))
	kit.Must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running errgroup.Group
	running.Go(func() error { return runtime.Start(ctx) })
	t.Cleanup(func() {
		stop()
		kit.Must(t, running.Wait())
	})
	<-runtime.Ready()
	return &containerRuntime{runtime, hollowtest.Dial(t, runtime.Endpoint()).Runtime}
}

// describe returns a line for each container.
func (r *containerRuntime) describe(t *testing.T) string {
	t.Helper()
	list, err := r.cri.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	kit.Must(t, err)
	var all []string
	for _, c := range list.GetContainers() {
		all = append(all, fmt.Sprint(c.GetId(), " ", c.GetState(), " attempt ", c.GetMetadata().GetAttempt()))
	}
	return strings.Join(all, "\n")
}

// awaitContainers waits until the container of each pod runs, and returns all.
func (r *containerRuntime) awaitContainers(t *testing.T) string {
	t.Helper()
	kit.Succeeds(t, time.Minute, func() error {
		if n := strings.Count(r.describe(t), "RUNNING"); n != 3 {
			return fmt.Errorf("%d of 3 containers run", n)
		}
		return nil
	})
	return r.describe(t)
}

// wantUnchanged fails the test if a container changes within d. A kubelet stops unwanted containers at its next clean-up, every 2 s.
func (r *containerRuntime) wantUnchanged(t *testing.T, before string, d time.Duration) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if after := r.describe(t); after != before {
			t.Fatalf("containers\n%s\nafter\n%s", after, before)
		}
		select {
		case <-deadline:
			return
		case <-tick.C:
		}
	}
}

// logBuffer collects the agent's log.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (n *logBuffer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *logBuffer) contains(text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !strings.Contains(n.text.String(), text) {
		return fmt.Errorf("the log does not say %q", text)
	}
	return nil
}

// startAgent runs an agent until the test ends, or until it is killed. log gets its log too, unless it is nil.
func startAgent(t *testing.T, o agentOrder, log io.Writer) (kill func()) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	o.Port = listener.Addr().(*net.TCPAddr).Port
	kit.Must(t, listener.Close())
	text, err := json.Marshal(o)
	kit.Must(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	cmd.Env = append(os.Environ(), childOrder+"="+string(text))
	out := t.Output()
	if log != nil {
		out = io.MultiWriter(out, log)
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	kit.Must(t, cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
	}
	t.Cleanup(kill)
	return kill
}
