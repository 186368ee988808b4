package localapi_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// listSize is the number of objects, of 1 KiB each, in the benchmark's list.
const listSize = 500

// BenchmarkAgainstAPIServer compares kube-apiserver over TLS with the local API in memory, as used by the kubelet, and on
// its unix socket. For the same objects, in protobuf, in one run, it measures a get, a list of 500, and the time from a
// write's acknowledgement to its event at an open watch. A write is a patch at the apiserver and a delivery at the gateway;
// both are synced to disk.
func BenchmarkAgainstAPIServer(b *testing.B) {
	shared := kubetest.Shared{}
	b.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(b)
	socket := filepath.Join(b.TempDir(), "api.sock")
	g := newGateway(b, true, func(c *localapi.Config) { c.UnixSocket = socket })
	ns := apiserver.Namespace(b)
	var all []metav1.Object
	for i := range listSize {
		cm := newConfigMap(fmt.Sprint("c", i), strings.Repeat("x", 1024))
		cm.ObjectMeta = metav1.ObjectMeta{Name: cm.Name, Labels: map[string]string{"of": "benchmark"}}
		cm, err := apiserver.Client(b).CoreV1().ConfigMaps(ns).Create(b.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		cm.ManagedFields = nil
		all = append(all, cm)
	}
	g.deliverObjects(all...)
	unix := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	b.Cleanup(unix.CloseIdleConnections)
	changed := all[0].(*corev1.ConfigMap).DeepCopy()
	atGateway := func(context.Context, string) error {
		changed.ResourceVersion += "0"
		g.deliverObjects(changed)
		return nil
	}
	for _, way := range []struct {
		name  string
		cfg   *rest.Config
		write func(ctx context.Context, value string) error
	}{
		{"apiserver", apiserver.Config(), func(ctx context.Context, value string) error {
			patch := fmt.Appendf(nil, `{"data":{"changed":%q}}`, value)
			_, err := apiserver.Client(b).CoreV1().ConfigMaps(ns).Patch(ctx, changed.Name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			return err
		}},
		{"memory", g.api.ClientConfig(), atGateway},
		{"socket", &rest.Config{Host: "http://edge", Transport: unix, QPS: -1}, atGateway},
	} {
		way.cfg.ContentType, way.cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
		c := clientFor(b, way.cfg)
		b.Run("get/"+way.name, func(b *testing.B) {
			measureQuantiles(b, func() error {
				_, err := c.CoreV1().ConfigMaps(ns).Get(b.Context(), "c7", metav1.GetOptions{})
				return err
			})
		})
		b.Run("list/"+way.name, func(b *testing.B) {
			measureQuantiles(b, func() error {
				list, err := c.CoreV1().ConfigMaps(ns).List(b.Context(), metav1.ListOptions{LabelSelector: "of=benchmark"})
				if err == nil && len(list.Items) != listSize {
					err = fmt.Errorf("%d items", len(list.Items))
				}
				return err
			})
		})
		b.Run("watch/"+way.name, func(b *testing.B) { watchLatency(b, c, ns, changed.Name, way.write) })
	}
}

// measureQuantiles measures calls of do.
func measureQuantiles(b *testing.B, do func() error) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	reportQuantiles(b, took)
}

func reportQuantiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	for name, q := range map[string]int{"p50-ms": 50, "p99-ms": 99} {
		b.ReportMetric(float64(took[min(len(took)-1, len(took)*q/100)].Microseconds())/1000, name)
	}
}

// watchLatency measures from the end of a write to its event. An event that arrives before the write has returned counts as 0.
func watchLatency(b *testing.B, c kubernetes.Interface, ns, name string, write func(context.Context, string) error) {
	b.Helper()
	in, err := c.CoreV1().ConfigMaps(ns).Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		b.Fatal(err)
	}
	defer in.Stop()
	<-in.ResultChan() // the present state
	arrived := make(chan time.Time, 1)
	next := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range next {
			if event := <-in.ResultChan(); event.Type != watch.Modified {
				b.Errorf("event %v", event.Type)
			}
			arrived <- time.Now()
		}
	}()
	defer func() { close(next); <-done }()
	var took []time.Duration
	n := 0
	for b.Loop() {
		n++
		next <- struct{}{}
		if err := write(b.Context(), fmt.Sprint(n)); err != nil {
			b.Fatal(err)
		}
		written := time.Now()
		took = append(took, max(0, (<-arrived).Sub(written)))
	}
	reportQuantiles(b, took)
}
