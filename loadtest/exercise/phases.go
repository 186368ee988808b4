package exercise

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/swarm"
)

const (
	// workers is how many requests to Kubernetes are in flight.
	workers = 64
	// tick is how often a wait looks.
	tick = 50 * time.Millisecond
)

// workload makes and changes the objects of a run, and tracks what becomes of them.
type workload struct {
	run       string
	namespace string
	kube      kubernetes.Interface
	log       *zap.Logger
	tracker   *measure.Tracker
	sequence  atomic.Int64
	failed    atomic.Int64
	// answers are how long the requests of the phase took.
	answers atomic.Pointer[measure.Histogram]
	// requests has room for workers.
	requests chan struct{}
	swarm    *swarm.Swarm
	joined   int
	pods     map[string]podSet // by node; a phase changes it before its operations begin
}

// podSet are the pods of a node.
type podSet struct {
	names    []string
	revision int
	// turn orders the changes of the node's ConfigMap.
	turn *sync.Mutex
}

// configMapName is the name of the ConfigMap of a node.
func configMapName(node string) string { return "page-" + node }

// join lets gateways join, and tracks each until its Node is in its store.
func (w *workload) join(ctx context.Context, j plan.Join, into *measure.Histogram) error {
	first := w.joined
	w.joined += j.Gateways
	return w.swarm.Join(ctx, first, j.Gateways, j.PerSecond, func(g *swarm.Gateway, due time.Time) {
		object := g.Name() + " join"
		w.tracker.Begin(object, 0, due, into)
		g.OnJoined(func(at time.Time) { w.tracker.End(object, 0, at) })
	})
}

// createPods creates one ConfigMap and the pods of each gateway.
func (w *workload) createPods(ctx context.Context, p plan.Pods, into *measure.Histogram) error {
	gateways := w.swarm.Gateways()
	var all sync.WaitGroup
	for _, g := range gateways {
		all.Go(func() { w.createConfigMap(ctx, g.Name()) })
	}
	all.Wait()
	for _, g := range gateways {
		set := w.pods[g.Name()]
		if set.turn == nil {
			set.turn = &sync.Mutex{}
		}
		for range p.PerGateway {
			set.names = append(set.names, fmt.Sprintf("pod-%s-%d-0", g.Name(), len(set.names)))
		}
		w.pods[g.Name()] = set
	}
	return w.atRate(ctx, len(gateways)*p.PerGateway, p.PerSecond, func(ctx context.Context, i int, due time.Time) {
		node := gateways[i%len(gateways)].Name()
		names := w.pods[node].names
		w.createPod(ctx, node, names[len(names)-p.PerGateway+i/len(gateways)], due, into)
	})
}

// createPod creates a pod, and tracks it until it runs.
func (w *workload) createPod(ctx context.Context, node, name string, due time.Time, into *measure.Histogram) {
	w.tracker.Begin("pod "+name, 0, due, into)
	done := w.request(ctx, "create pod", func() error {
		return retryForbidden(ctx, func() error {
			_, err := w.kube.CoreV1().Pods(w.namespace).Create(ctx, w.newPod(node, name), metav1.CreateOptions{})
			return err
		})
	})
	if !done {
		w.tracker.Drop("pod "+name, 0)
	}
}

// forbiddenFor is how long a pod may be refused because the namespace has no service account yet.
const forbiddenFor = 30 * time.Second

func retryForbidden(ctx context.Context, do func() error) error {
	for deadline := time.Now().Add(forbiddenFor); ; {
		err := do()
		if !apierrors.IsForbidden(err) || time.Now().After(deadline) {
			return err
		}
		if sleep(ctx, tick) != nil {
			return err
		}
	}
}

// changeConfigMap changes the ConfigMap of a node, and tracks the change until it is in the gateway's store.
func (w *workload) changeConfigMap(ctx context.Context, node string, due time.Time, into *measure.Histogram) {
	turn := w.pods[node].turn // two changes at a time could be made in another order than they were numbered
	turn.Lock()
	defer turn.Unlock()
	sequence := w.sequence.Add(1)
	w.tracker.Begin(node+" configmap", sequence, due, into)
	patch := `{"data":{"op":"` + strconv.FormatInt(sequence, 10) + `"}}`
	done := w.request(ctx, "change ConfigMap", func() error {
		_, err := w.kube.CoreV1().ConfigMaps(w.namespace).Patch(ctx, configMapName(node), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	if !done {
		w.tracker.Drop(node+" configmap", sequence)
	}
}

// churn changes the ConfigMaps of some gateways, one after the other.
func (w *workload) churn(ctx context.Context, gateways []*swarm.Gateway, rate float64, d time.Duration, into *measure.Histogram) error {
	return w.atRate(ctx, max(1, int(rate*d.Seconds())), rate, func(ctx context.Context, i int, due time.Time) {
		w.changeConfigMap(ctx, gateways[i%len(gateways)].Name(), due, into)
	})
}

// rollout replaces each pod by another one.
func (w *workload) rollout(ctx context.Context, rate float64, into *measure.Histogram) error {
	type replacement struct{ node, before, after string }
	var all []replacement
	for _, g := range w.swarm.Gateways() {
		set := w.pods[g.Name()]
		set.revision++
		next := podSet{revision: set.revision, turn: set.turn}
		for _, name := range set.names {
			after := name[:strings.LastIndexByte(name, '-')+1] + strconv.Itoa(set.revision)
			next.names = append(next.names, after)
			all = append(all, replacement{g.Name(), name, after})
		}
		w.pods[g.Name()] = next
	}
	return w.atRate(ctx, len(all), rate, func(ctx context.Context, i int, due time.Time) {
		w.request(ctx, "delete pod", func() error {
			return w.kube.CoreV1().Pods(w.namespace).Delete(ctx, all[i].before, metav1.DeleteOptions{})
		})
		w.createPod(ctx, all[i].node, all[i].after, due, into)
	})
}

// cut cuts a share of the links, spread over the gateways, and tracks those until they have their latest change.
func (w *workload) cut(ctx context.Context, c plan.Cut, into *measure.Histogram) error {
	all := w.swarm.Gateways()
	count := max(1, int(float64(len(all))*c.Share))
	var cut []*swarm.Gateway
	for i := range count {
		cut = append(cut, all[i*len(all)/count])
	}
	for _, g := range cut {
		g.SetCut(true)
	}
	meanwhile := measure.NewHistogram(time.Now()) // of changes at gateways that cannot hear of them
	err := w.churn(ctx, all, c.PerSecond, c.For.Duration, meanwhile)
	heal := time.Now()
	for _, g := range cut {
		g.SetCut(false)
	}
	if err != nil {
		return err
	}
	return w.changeAll(ctx, cut, heal, into)
}

// changeAll changes the ConfigMap of each gateway at once.
func (w *workload) changeAll(ctx context.Context, gateways []*swarm.Gateway, due time.Time, into *measure.Histogram) error {
	var all sync.WaitGroup
	for _, g := range gateways {
		all.Go(func() { w.changeConfigMap(ctx, g.Name(), due, into) })
	}
	all.Wait()
	return ctx.Err()
}

// kill runs the command, and then changes something at each gateway.
func (w *workload) kill(ctx context.Context, k plan.Kill, limit time.Duration, into *measure.Histogram) error {
	began := time.Now()
	if err := runCommand(ctx, limit, k.Command); err != nil {
		return err
	}
	return w.changeAll(ctx, w.swarm.Gateways(), began, into)
}

// storm closes all links, and tracks each gateway until it has another.
func (w *workload) storm(ctx context.Context, limit time.Duration, into *measure.Histogram) error {
	began := time.Now()
	var waiting []*swarm.Gateway
	for _, g := range w.swarm.Gateways() {
		w.tracker.Begin(g.Name()+" link", 0, began, into)
		g.Redial()
		waiting = append(waiting, g)
	}
	err := w.await(ctx, limit, func() bool {
		var rest []*swarm.Gateway
		for _, g := range waiting {
			if since := g.LinkedSince(); since.After(began) {
				w.tracker.End(g.Name()+" link", 0, since)
			} else {
				rest = append(rest, g)
			}
		}
		waiting = rest
		return len(waiting) == 0
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	return nil // those without a link are missing
}

// sleep waits; its only error is ctx's.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

var errLate = errors.New("not in time")

// await waits until a condition holds.
func (w *workload) await(ctx context.Context, limit time.Duration, holds func() bool) error {
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			return errLate
		}
		if err := sleep(ctx, tick); err != nil {
			return err
		}
	}
	return nil
}

// atRate calls begin count times, at a rate per second, each in a goroutine, with the time when it was due. It waits for all.
func (w *workload) atRate(ctx context.Context, count int, rate float64, begin func(ctx context.Context, i int, due time.Time)) error {
	var all sync.WaitGroup
	defer all.Wait()
	start := time.Now()
	for i := range count {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if err := sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		all.Go(func() { begin(ctx, i, due) })
	}
	return nil
}

// request makes one request to Kubernetes, within the limit of those in flight, and counts a failure.
func (w *workload) request(ctx context.Context, what string, do func() error) bool {
	select {
	case w.requests <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	began := time.Now()
	err := do()
	<-w.requests
	w.answers.Load().Record(began, time.Now())
	if err != nil && ctx.Err() == nil {
		w.failed.Add(1)
		w.log.Warn("request failed", zap.String("what", what), zap.Error(err))
	}
	return err == nil
}
