package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/observe"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/swarm"
)

// Scraper returns what the components of a cluster have used so far, by name.
type Scraper func(ctx context.Context) map[string]observe.Usage

// Result is the outcome of one phase.
type Result struct {
	Kind    string          `json:"kind"`
	Seconds float64         `json:"seconds"`
	Latency measure.Summary `json:"latency"`
	// Answers are how long Kubernetes took to answer the requests of the phase.
	Answers measure.Summary `json:"answers"`
	// Missing are operations that did not end in time. Failed are requests that Kubernetes refused.
	Missing int   `json:"missing"`
	Failed  int64 `json:"failed"`
	// Attaches are those of all gateways. More than there were new links tell that deliveries were interrupted.
	Attaches int64 `json:"attaches"`
	// Sent and Received are the bytes of all links, Linked is how many links there were at the end.
	Sent     int64 `json:"bytesSent"`
	Received int64 `json:"bytesReceived"`
	Linked   int64 `json:"linked"`
	// Messages are those that gateways have stored: each is an object that was sent to one of them.
	Messages int64 `json:"messages"`
	// Gateways is how many had joined at the end.
	Gateways int `json:"gateways"`
	// Usage is what the components used in the phase: CPU in it, and memory at its end.
	Usage map[string]observe.Usage `json:"usage,omitempty"`
	// Judgements are those of the phase's limits.
	Judgements []Judgement `json:"judgements"`
}

// Runner carries out a plan. Create it with New, connect Observe with the swarm, and then call Run once.
type Runner struct {
	*workload
	services *serviceSet
	plan     plan.Plan
	scrape   Scraper
	listener Listener
	messages atomic.Int64
	// progressEvery is how often a phase says how far it is.
	progressEvery time.Duration
}

// New returns a runner. It makes its objects in a namespace that exists.
func New(p plan.Plan, run, namespace string, kube kubernetes.Interface, scrape Scraper, log *zap.Logger) *Runner {
	work := &workload{
		run: run, namespace: namespace, kube: kube, log: log, tracker: measure.NewTracker(), requests: make(chan struct{}, workers),
		pods: map[string]podSet{},
	}
	return &Runner{workload: work, services: &serviceSet{workload: work, followed: p.AllServices}, plan: p, scrape: scrape, progressEvery: progressInterval}
}

// Observe takes what a gateway has stored. The ConfigMaps and EndpointSlices of the run say by which operation they were written.
func (r *Runner) Observe(node string, m wire.Message, at time.Time) {
	r.messages.Add(1)
	switch {
	case m.Key.Namespace != r.namespace || m.Op != wire.Apply:
	case m.Key.Resource == "configmaps":
		r.observeConfigMap(node, m, at)
	case m.Key.Resource == "endpointslices":
		r.services.observeSlice(node, m, at)
	}
}

// observeConfigMap ends the operations up to that of a ConfigMap.
func (r *Runner) observeConfigMap(node string, m wire.Message, at time.Time) {
	var object struct {
		Data map[string]string `json:"data"`
	}
	if json.Unmarshal(m.Object, &object) != nil {
		return // the store's audit finds it
	}
	if sequence, err := strconv.ParseInt(object.Data["op"], 10, 64); err == nil {
		r.tracker.End(node+" configmap", sequence, at)
	}
}

// Run carries out all phases, and tells the listener how far it is. It ends early when ctx ends.
func (r *Runner) Run(ctx context.Context, s *swarm.Swarm, listener Listener) error {
	r.swarm, r.listener = s, listener
	wctx, cancel := context.WithCancel(ctx)
	group, gctx := errgroup.WithContext(wctx)
	group.Go(func() error { return r.watchPods(gctx) })
	err := func() error {
		for i, phase := range r.plan.Phases {
			r.log.Info("phase begins", zap.Int("number", i+1), zap.String("kind", phase.Kind()))
			result, err := r.runPhase(gctx, i+1, phase)
			if err != nil {
				return fmt.Errorf("phase %d, %s: %w", i+1, phase.Kind(), err)
			}
			if listener.Done != nil {
				listener.Done(result)
			}
		}
		return nil
	}()
	cancel()
	return errors.Join(err, group.Wait())
}

// runPhase carries out one phase, waits until its operations have ended, and judges it.
func (r *Runner) runPhase(ctx context.Context, number int, phase plan.Phase) (Result, error) {
	before, began := r.scrape(ctx), time.Now()
	counters := r.swarm.Counters()
	sent, received, failed, attaches := counters.Sent.Load(), counters.Received.Load(), r.failed.Load(), r.swarm.Attaches()
	messages := r.messages.Load()
	into, answers := measure.NewHistogram(began), measure.NewHistogram(began)
	r.answers.Store(answers)
	if err := r.finish(ctx, number, phase, began, into); err != nil {
		return Result{}, err
	}
	missing := r.tracker.Abandon()
	if err := restore(ctx, phase); err != nil {
		return Result{}, err
	}
	result := Result{
		Kind: phase.Kind(), Seconds: time.Since(began).Seconds(), Latency: into.Summary(), Answers: answers.Summary(), Missing: missing, Failed: r.failed.Load() - failed,
		Sent: counters.Sent.Load() - sent, Received: counters.Received.Load() - received, Linked: counters.Linked.Load(), Gateways: r.swarm.Joined(),
		Messages: r.messages.Load() - messages, Attaches: r.swarm.Attaches() - attaches, Usage: map[string]observe.Usage{},
	}
	for name, now := range r.scrape(ctx) {
		if was, known := before[name]; known {
			result.Usage[name] = now.Since(was)
		}
	}
	result.Judgements = judgePhase(phase.Limits, result)
	return result, nil
}

// finish carries out a phase and waits until its operations have ended, or may take no longer. What was killed is restored if that fails.
func (r *Runner) finish(ctx context.Context, number int, phase plan.Phase, began time.Time, into *measure.Histogram) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, restore(ctx, phase))
		}
	}()
	if r.listener.Progress != nil {
		pctx, cancel := context.WithCancel(ctx)
		var reporting sync.WaitGroup
		reporting.Go(func() { reportProgress(pctx, r, Progress{Number: number, Kind: phase.Kind()}, began, into) })
		defer reporting.Wait()
		defer cancel()
	}
	if err := r.carryOut(ctx, phase, into); err != nil {
		return err
	}
	_ = r.await(ctx, phase.Timeout.Duration, func() bool { return r.tracker.Outstanding() == 0 }) // what has not ended is missing
	return ctx.Err()
}

// carryOut begins all operations of a phase.
func (r *Runner) carryOut(ctx context.Context, phase plan.Phase, into *measure.Histogram) error {
	switch {
	case phase.Join != nil:
		return r.join(ctx, *phase.Join, into)
	case phase.Pods != nil:
		return r.createPods(ctx, *phase.Pods, into)
	case phase.Churn != nil:
		return r.churn(ctx, r.swarm.Gateways(), phase.Churn.PerSecond, phase.Churn.For.Duration, into)
	case phase.Rollout != nil:
		return r.rollout(ctx, phase.Rollout.PerSecond, into)
	case phase.Cut != nil:
		return r.cut(ctx, *phase.Cut, into)
	case phase.Kill != nil:
		return r.kill(ctx, *phase.Kill, phase.Timeout.Duration, into)
	case phase.Storm != nil:
		return r.storm(ctx, phase.Timeout.Duration, into)
	case phase.Services != nil:
		return r.services.moveEndpoints(ctx, *phase.Services, phase.Timeout.Duration, into)
	default:
		return sleep(ctx, phase.Idle.For.Duration)
	}
}
