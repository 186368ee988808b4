package loadtest

import (
	"context"
	"fmt"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/loadtest/acks"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// environment gives scenarios a running cluster: Kubernetes as its admin, and the hub as the nats CLI.
type environment struct {
	cluster *devcluster.Cluster
	// edges are the names of the cluster's gateways, which are its nodes.
	edges  []string
	size   Size
	config *rest.Config
	kube   kubernetes.Interface
	nc     *nats.Conn
	acks   *acks.Log
	// objects writes the scenarios' objects.
	objects *workload.Client
	// recorder has the measurements of the present scenario.
	recorder results.Recorder
}

// newEnvironment connects to a cluster. Close it before the cluster goes down.
func newEnvironment(ctx context.Context, cluster *devcluster.Cluster, seed uint64, size Size) (*environment, error) {
	w := &environment{cluster: cluster, edges: folder.Names("edge", cluster.Spec().Edges), size: size}
	if err := w.connect(ctx, seed); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *environment) connect(ctx context.Context, seed uint64) (err error) {
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.cluster.Kubeconfig()); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	w.config.QPS = -1 // only the apiserver limits the rate
	// Every controller of Kubernetes uses protobuf: the parsing of JSON must not be measured.
	w.config.ContentType, w.config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if w.kube, err = kubernetes.NewForConfig(w.config); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	admin, err := natscontext.NewFromFile(w.cluster.NATSContext())
	if err != nil {
		return fmt.Errorf("read nats context: %w", err)
	}
	if w.nc, err = admin.Connect(nats.Name("loadtest")); err != nil {
		return fmt.Errorf("connect to the hub: %w", err)
	}
	if w.acks, err = acks.Subscribe(w.nc); err != nil {
		return err
	}
	w.objects, err = workload.New(ctx, w.kube, seed)
	return err
}

func (w *environment) close() { w.nc.Close() }
