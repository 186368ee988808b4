package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
)

const (
	// namespace holds all objects of scenarios; it is deleted when the Environment closes.
	namespace = "loadtest"
	// writers is the number of clients that write to the apiserver concurrently.
	writers = 32
)

// Environment gives scenarios a running cluster: Kubernetes as its admin, and the hub as the nats CLI.
type Environment struct {
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	nc      *nats.Conn
	// publisher reads the stream's messages for a node; it never publishes.
	publisher *publish.Publisher
	acks      *ackSubscription
	rand      *rand.Rand
	progress  io.Writer
	// recorder has the measurements of the present scenario, undo is called after it.
	recorder
	undo []func(context.Context) error
}

// NewEnvironment connects to a cluster. Close it before the cluster goes down.
func NewEnvironment(ctx context.Context, cluster *devcluster.Cluster, seed uint64, talk io.Writer) (*Environment, error) {
	w := &Environment{cluster: cluster, rand: rand.New(rand.NewPCG(seed, seed)), progress: talk}
	if err := w.connect(); err != nil {
		return nil, errors.Join(err, w.disconnect())
	}
	if err := w.makeNamespace(ctx); err != nil {
		return nil, errors.Join(err, w.disconnect())
	}
	return w, nil
}

func (w *Environment) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", w.cluster.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1 // only the apiserver limits the rate
	// Every controller of Kubernetes uses protobuf: the parsing of JSON must not be measured.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if w.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	admin, err := natscontext.NewFromFile(w.cluster.NATSContext())
	if err != nil {
		return fmt.Errorf("read nats context: %w", err)
	}
	if w.nc, err = admin.Connect(nats.Name("loadtest")); err != nil {
		return fmt.Errorf("connect to the hub: %w", err)
	}
	if w.publisher, err = publish.NewPublisher(w.nc, metrics.New(nil)); err != nil {
		return err
	}
	w.acks, err = subscribeAcks(w.nc)
	return err
}

// makeNamespace creates the namespace and waits for the service account that pods need.
func (w *Environment) makeNamespace(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := w.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	return poll.Until(ctx, "the service account of the namespace", func(ctx context.Context) (bool, error) {
		_, err := w.kube.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
}

// Close deletes the remaining objects of scenarios and disconnects.
func (w *Environment) Close(ctx context.Context) error {
	err := w.kube.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
	if err == nil {
		err = poll.Until(ctx, "the namespace goes", func(ctx context.Context) (bool, error) {
			_, err := w.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
	}
	return errors.Join(err, w.disconnect())
}

func (w *Environment) disconnect() error {
	var err error
	if w.acks != nil {
		err = w.acks.close()
	}
	if w.nc != nil {
		w.nc.Close()
	}
	return err
}

// atEnd runs undo after the present scenario, also when it fails.
func (w *Environment) atEnd(undo func(context.Context) error) { w.undo = append(w.undo, undo) }

// runScenario runs one scenario. It returns the completed measurements also with an error.
func (w *Environment) runScenario(ctx context.Context, s scenario) (lines []ReportLine, err error) {
	w.recorder, w.undo = recorder{name: s.name}, nil
	err = s.run(ctx, w)
	// Leftovers would disturb the next scenario, so they are removed also when this one was interrupted.
	last := context.WithoutCancel(ctx)
	for _, undo := range slices.Backward(w.undo) {
		err = errors.Join(err, undo(last))
	}
	if err = errors.Join(err, w.deletePods(last), w.deleteConfigMaps(last), w.awaitReleasedObjects(last)); err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return w.reportLines(), err
}

// edgeNames returns the names of the cluster's gateways, which are its nodes.
func (w *Environment) edgeNames() []string {
	names := make([]string, w.cluster.Spec().Edges)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%d", i+1)
	}
	return names
}

func (w *Environment) logProgress(format string, args ...any) {
	fmt.Fprintf(w.progress, "  "+format+"\n", args...)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
