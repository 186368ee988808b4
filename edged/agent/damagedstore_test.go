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
	node, err := kubelet.New(kubelet.Config{
		Node: "edge-1", Dir: filepath.Join(o.Dir, "kubelet"), RuntimeEndpoint: o.Endpoint, Hollow: true, Port: o.Port,
		DropIn: []byte("syncFrequency: 1s"),
	}, api.ClientConfig(), log)
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

// A kubelet that starts on a store whose newest pods were lost by the disk does not stop the containers of any of them.
func TestNode_DamagedStoreEndsNoContainer(t *testing.T) {
	dir := t.TempDir()
	newAttachedStore(t, dir)
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
	bed := hollowtest.Dial(t, runtime.Endpoint())
	containers := func() string {
		list, err := bed.Runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		kit.Must(t, err)
		var ids []string
		for _, c := range list.GetContainers() {
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				ids = append(ids, c.GetId())
			}
		}
		return strings.Join(ids, " ")
	}

	kill := startAgent(t, dir, runtime.Endpoint(), nil)
	eventually(t, "three containers", func() error {
		if n := len(strings.Fields(containers())); n != 3 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	before := containers()
	kill()

	blocks, err := filepath.Glob(filepath.Join(dir, "nats/jetstream/*/streams/KV_store/msgs/*.blk"))
	kit.Must(t, err)
	for _, b := range blocks {
		data, err := os.ReadFile(b)
		kit.Must(t, err)
		i := strings.Index(string(data), `"name":"pod-b"`) // the first: the newest may not be acked
		if i < 0 {
			continue
		}
		data[i] ^= 1
		kit.Must(t, os.WriteFile(b, data, 0o600))
		// As if the server had not yet written its index: the remainder then looks whole to it.
		kit.Must(t, os.Remove(filepath.Join(filepath.Dir(b), "index.db")))
	}
	log := &logBuffer{}
	startAgent(t, dir, runtime.Endpoint(), log)
	eventually(t, "the damage found", func() error { return log.contains("store damaged") })
	eventually(t, "the kubelet at work", func() error { return log.contains("Starting to sync pod status") })
	// A kubelet with a list of pods stops containers of other pods at its next clean-up, every 2 s.
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if after := containers(); after != before {
			t.Fatalf("containers %q after %q", after, before)
		}
		select {
		case <-deadline:
			return
		case <-tick.C:
		}
	}
}

// newAttachedStore creates a store with three pods, created one after the other.
func newAttachedStore(t *testing.T, dir string) {
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
		data, err := json.Marshal(&corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: "1", CreationTimestamp: metav1.Now()},
			Spec: corev1.PodSpec{
				NodeName: "edge-1", RestartPolicy: corev1.RestartPolicyAlways, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
				EnableServiceLinks: &no, DNSPolicy: corev1.DNSDefault, // set by an apiserver
				Containers: []corev1.Container{{Name: "c", Image: "nginx", ImagePullPolicy: corev1.PullIfNotPresent}},
			},
		})
		kit.Must(t, err)
		seq := uint64(i) + 2 //nolint:gosec // a small number
		kit.Must(t, st.Apply(t.Context(), []wire.Message{{
			Key: wire.Key{Resource: "pods", Namespace: "default", Name: name}, Op: wire.Apply, UID: "uid-" + name, Version: "1", Object: data, Sequence: seq,
		}}, seq))
	}
}

// logBuffer collects the agent's log.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
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

// startAgent runs an agent until the test ends, or until it is killed.
func startAgent(t *testing.T, dir, endpoint string, log io.Writer) (kill func()) {
	t.Helper()
	return startAgentAs(t, agentOrder{Dir: dir, Endpoint: endpoint}, log)
}

func startAgentAs(t *testing.T, o agentOrder, log io.Writer) (kill func()) {
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
