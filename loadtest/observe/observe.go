// Package observe reads what the components of a cluster use: CPU, memory, and the requests that the apiserver has served by verb.
//
// A component that cannot be read is left out, and logged once: a load test goes on without it.
package observe

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
)

const (
	// timeout bounds the reading of one component.
	timeout = 10 * time.Second
	// maxMetrics bounds a component's answer. A large apiserver's is some 20 MB.
	maxMetrics = 64 << 20
	// The names of the components that need no address.
	apiserver, ownProcess = "kube-apiserver", "swarm"
)

// Usage is what a component has used.
type Usage struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	Bytes      float64 `json:"residentBytes"`
	// Requests are those that the apiserver has served, by verb; nil for others.
	Requests map[string]float64 `json:"requests,omitempty"`
}

// Since returns what was used since an earlier reading, and the memory of now.
func (u Usage) Since(before Usage) Usage {
	d := Usage{CPUSeconds: u.CPUSeconds - before.CPUSeconds, Bytes: u.Bytes}
	for verb, n := range u.Requests {
		if d.Requests == nil {
			d.Requests = map[string]float64{}
		}
		if more := n - before.Requests[verb]; more > 0 {
			d.Requests[verb] = more
		}
	}
	return d
}

// Components reads components.
type Components struct {
	kube kubernetes.Interface
	urls map[string]string
	log  *zap.Logger

	mu      sync.Mutex
	unheard map[string]bool // guarded by mu: those that were logged
}

// New returns the reader of this process, of the apiserver, and of further components by name and address.
func New(kube kubernetes.Interface, urls map[string]string, log *zap.Logger) *Components {
	return &Components{kube: kube, urls: urls, log: log, unheard: map[string]bool{}}
}

// Read reads all components.
func (c *Components) Read(ctx context.Context) map[string]Usage {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all := map[string]Usage{}
	take := func(name string, usage Usage, err error) {
		if err == nil {
			all[name] = usage
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.unheard[name] && ctx.Err() == nil {
			c.unheard[name] = true
			c.log.Warn("component not measured", zap.String("component", name), zap.Error(err))
		}
	}
	own, err := Own()
	take(ownProcess, own, err)
	text, err := c.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err == nil {
		own, err = Parse(strings.NewReader(string(text)))
	}
	take(apiserver, own, err)
	for name, address := range c.urls {
		usage, err := readURL(ctx, address)
		take(name, usage, err)
	}
	return all
}

func readURL(ctx context.Context, address string) (Usage, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Usage{}, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		return Usage{}, fmt.Errorf("%s: %s", address, reply.Status)
	}
	return Parse(io.LimitReader(reply.Body, maxMetrics))
}

// Parse reads Prometheus' text format.
func Parse(text io.Reader) (Usage, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Usage{}, fmt.Errorf("metrics: %w", err)
	}
	u := Usage{CPUSeconds: sum(families["process_cpu_seconds_total"]), Bytes: sum(families["process_resident_memory_bytes"])}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "verb" {
				if u.Requests == nil {
					u.Requests = map[string]float64{}
				}
				u.Requests[label.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return u, nil
}

func sum(family *dto.MetricFamily) (all float64) {
	for _, m := range family.GetMetric() {
		all += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return all
}

// Own reads this process.
func Own() (Usage, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return Usage{}, fmt.Errorf("own use: %w", err)
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return Usage{}, fmt.Errorf("own memory: %w", err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return Usage{}, fmt.Errorf("own memory: %w", err)
	}
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return Usage{CPUSeconds: cpu.Seconds(), Bytes: float64(resident * int64(os.Getpagesize()))}, nil
}

// Memory is what of this process's memory its heap and the stacks of its goroutines take; the rest are garbage, the program and the runtime.
type Memory struct{ HeapObjects, Stacks uint64 }

// OwnMemory reads the memory of this process. The heap includes garbage that was not collected yet.
func OwnMemory() Memory {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	value := func(s metrics.Sample) uint64 {
		if s.Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return s.Value.Uint64()
	}
	return Memory{value(samples[0]), value(samples[1])}
}
