package loadtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/loadtest/poll"
)

// services measures the memory of a gateway whose kube-proxy watches Services and EndpointSlices at the local API: with hardly any in the
// cluster, then with n, each with one EndpointSlice of three endpoints on other nodes.
func services(n int, pace memoryPace) scenario {
	return scenario{"services", func(ctx context.Context, w *Environment) error {
		edge := w.edgeNames()[0]
		had, err := countProxyRules(ctx, w, edge)
		if err != nil {
			return err
		}
		if err := recordProxyMemory(ctx, w, pace, edge, "few Services"); err != nil {
			return err
		}
		list := numberedNames("services", n)
		w.atEnd(func(ctx context.Context) error { return deleteServices(ctx, w, list) })
		if err := makeServices(ctx, w, list); err != nil {
			return err
		}
		began := time.Now()
		err = poll.Until(ctx, fmt.Sprintf("kube-proxy has rules for %d Services", n), func(ctx context.Context) (bool, error) {
			has, err := countProxyRules(ctx, w, edge)
			return err == nil && has >= had+n, err
		})
		if err != nil {
			return err
		}
		took := time.Since(began)
		if err := recordProxyMemory(ctx, w, pace, edge, fmt.Sprintf("%d Services", n)); err != nil {
			return err
		}
		w.recordTime(measure{text: fmt.Sprintf("%d Services made → the gateway's kernel leads to the last", n)}, took)
		return nil
	}}
}

func recordProxyMemory(ctx context.Context, w *Environment, pace memoryPace, edge, state string) error {
	if err := recordMemory(ctx, w, pace, edge, "edgecore with kube-proxy and "+state, "", ""); err != nil {
		return err
	}
	pace.settle = 0
	return recordMemory(ctx, w, pace, "proxy-"+strings.TrimPrefix(edge, "edge-"), "kube-proxy then, with "+state, "", "")
}

// countProxyRules counts the Service addresses for which a gateway's kernel has rules.
func countProxyRules(ctx context.Context, w *Environment, edge string) (int, error) {
	cmd, err := w.cluster.Command(ctx, edge, "nft", "list", "map", "ip", "kube-proxy", "service-ips")
	if err != nil {
		return 0, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("read the rules of %s: %w: %s", edge, err, out)
	}
	return strings.Count(string(out), " : goto service-"), nil
}

// makeServices creates Services together with their endpoints, so that no controller does that at its own pace.
func makeServices(ctx context.Context, w *Environment, list []string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i, name := range list {
		g.Go(func() error {
			port := corev1.ServicePort{Name: "web", Port: 80}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}}
			if _, err := w.kube.CoreV1().Services(namespace).Create(gctx, service, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make service %s: %w", name, err)
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "services"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Name: &port.Name, Port: new(int32(8080))}},
			}
			for n := range 3 {
				address := fmt.Sprintf("198.18.%d.%d", n, 1+i%250) // reserved by RFC 2544
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
			}
			if _, err := w.kube.DiscoveryV1().EndpointSlices(namespace).Create(gctx, slice, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make endpoints of %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// deleteServices removes the Services, and the slices, which no controller removes.
func deleteServices(ctx context.Context, w *Environment, list []string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, name := range list {
		g.Go(func() error {
			return errors.Join(
				ignoreNotFound(w.kube.DiscoveryV1().EndpointSlices(namespace).Delete(gctx, name, metav1.DeleteOptions{})),
				ignoreNotFound(w.kube.CoreV1().Services(namespace).Delete(gctx, name, metav1.DeleteOptions{})),
			)
		})
	}
	return g.Wait()
}
