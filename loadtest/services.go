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
)

// Services measures the memory of a gateway whose kube-proxy watches Services and EndpointSlices at the local API: with hardly any
// in the cluster, then with many.
type Services struct {
	// Services is their number, each with one EndpointSlice of three endpoints on other nodes.
	Services int
	// Settle is the pause before a state is sampled; Samples are taken a second apart.
	Settle  time.Duration
	Samples int

	taken   memorySamples
	arrived []float64 // ms
}

const servicesName = "services"

// Name returns the name of the scenario.
func (*Services) Name() string { return "services" }

// Prepare does nothing: the first state is an idle gateway.
func (s *Services) Prepare(context.Context, *Environment) error {
	s.taken = memorySamples{settle: s.Settle, each: s.Samples}
	return nil
}

// Once creates the Services and waits until kube-proxy has rules for each.
func (s *Services) Once(ctx context.Context, w *Environment) error {
	edge := w.edgeNames()[0]
	proxy := "proxy-" + strings.TrimPrefix(edge, "edge-")
	had, err := w.countProxyRules(ctx, edge)
	if err != nil {
		return err
	}
	if err := s.sampleMemory(ctx, w, edge, proxy, "few Services"); err != nil {
		return err
	}
	if err := w.makeServices(ctx, numberedNames(servicesName, s.Services)); err != nil {
		return err
	}
	began := time.Now()
	err = waitUntil(ctx, fmt.Sprintf("kube-proxy has rules for %d Services", s.Services), func(ctx context.Context) (bool, error) {
		has, err := w.countProxyRules(ctx, edge)
		return err == nil && has >= had+s.Services, err
	})
	if err != nil {
		return err
	}
	s.arrived = append(s.arrived, milliseconds(time.Since(began)))
	if err := s.sampleMemory(ctx, w, edge, proxy, fmt.Sprintf("%d Services", s.Services)); err != nil {
		return err
	}
	return s.Close(ctx, w)
}

func (s *Services) sampleMemory(ctx context.Context, w *Environment, edge, proxy, state string) error {
	if err := s.taken.sampleSettled(ctx, w, edge, "edgecore with kube-proxy and "+state); err != nil {
		return err
	}
	return s.taken.sampleNow(ctx, w, proxy, "kube-proxy then, with "+state)
}

// countProxyRules counts the Service addresses for which a gateway's kernel has rules.
func (w *Environment) countProxyRules(ctx context.Context, edge string) (int, error) {
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
func (w *Environment) makeServices(ctx context.Context, list []string) error {
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
				ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: servicesName}},
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

// Lines returns the lines of the report.
func (s *Services) Lines() []ReportLine {
	as := func(state string) string { return state }
	made := ReportLine{
		Scenario: s.Name(), Measure: fmt.Sprintf("%d Services made → the gateway's kernel leads to the last", s.Services),
		Unit: unitTime, Summary: Summarize(s.arrived),
	}
	return append(s.taken.reportLines(s.Name(), as, func(string) (string, string) { return "", "" }), made)
}

// Close removes the Services, and the slices, which no controller removes.
func (s *Services) Close(ctx context.Context, w *Environment) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, name := range numberedNames(servicesName, s.Services) {
		g.Go(func() error {
			return errors.Join(
				ignoreNotFound(w.kube.DiscoveryV1().EndpointSlices(namespace).Delete(gctx, name, metav1.DeleteOptions{})),
				ignoreNotFound(w.kube.CoreV1().Services(namespace).Delete(gctx, name, metav1.DeleteOptions{})),
			)
		})
	}
	return g.Wait()
}
