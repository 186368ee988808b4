// Package plan is what a run of frond loadtest does, and what it must achieve: a strict YAML file, or one of the built-in plans.
package plan

import (
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// APIVersion is that of a plan's file.
const APIVersion = "loadtest.frond.io/v1alpha1"

const (
	// maxGateways bounds a plan: one process cannot hold more.
	maxGateways = 100_000
	// maxServices bounds a phase's Services: more do not fit into the default range of their addresses in a small cluster.
	maxServices = 10_000
	// defaultSettle is how long the end of the run waits until the gateways hold what Kubernetes holds.
	defaultSettle = 2 * time.Minute
	// defaultTimeout is how long a phase waits for the last of its operations.
	defaultTimeout = 2 * time.Minute
)

// Plan is a run.
type Plan struct {
	APIVersion string `json:"apiVersion"`
	// Settle is how long the gateways may take at the end until they hold what Kubernetes holds; 0 is 2 min.
	Settle metav1.Duration `json:"settle,omitzero"`
	// AllServices has the gateways sent all Services and EndpointSlices, as those with kube-proxy are. Without it they are sent none, as no pod asks.
	AllServices bool `json:"allServices,omitempty"`
	// Metrics are the components whose CPU and memory are measured.
	Metrics []Component `json:"metrics,omitempty"`
	Phases  []Phase     `json:"phases"`
}

// Component is a process that serves Prometheus metrics.
type Component struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// Phase is one of its kinds, and the limits that it must keep.
type Phase struct {
	Join     *Join     `json:"join,omitempty"`
	Pods     *Pods     `json:"pods,omitempty"`
	Churn    *Churn    `json:"churn,omitempty"`
	Rollout  *Rollout  `json:"rollout,omitempty"`
	Cut      *Cut      `json:"cut,omitempty"`
	Kill     *Kill     `json:"kill,omitempty"`
	Storm    *Storm    `json:"storm,omitempty"`
	Idle     *Idle     `json:"idle,omitempty"`
	Services *Services `json:"services,omitempty"`
	// Timeout is how long the last operation may take after it was due; 0 is 2 min. An operation that takes longer is missing.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	Limits  Limits          `json:"limits,omitzero"`
}

// Limits are judged after the phase; 0 is no limit.
type Limits struct {
	P50 metav1.Duration `json:"p50,omitzero"`
	P99 metav1.Duration `json:"p99,omitzero"`
	Max metav1.Duration `json:"max,omitzero"`
	// BytesPerLinkHour bounds what the phase moves on a link, both ways, in an hour.
	BytesPerLinkHour float64 `json:"bytesPerLinkHour,omitempty"`
}

// Join lets gateways join. Latency: from when one was due to its Node in its store.
type Join struct {
	Gateways  int     `json:"gateways"`
	PerSecond float64 `json:"perSecond"`
}

// Pods creates pods on each gateway, with one ConfigMap that they refer to. Latency: from when a pod was due to Running in Kubernetes.
type Pods struct {
	PerGateway int     `json:"perGateway"`
	PerSecond  float64 `json:"perSecond"`
}

// Churn changes ConfigMaps, in an open loop: the rate does not wait for answers. Latency: from when a change was due to the gateway's store.
type Churn struct {
	PerSecond float64         `json:"perSecond"`
	For       metav1.Duration `json:"for"`
}

// Rollout replaces each pod by another one. Latency: from when the new pod was due to Running in Kubernetes.
type Rollout struct {
	PerSecond float64 `json:"perSecond"`
}

// Cut cuts a share of the links while ConfigMaps change. Latency: from when the links may be dialled again to the latest change in the store.
type Cut struct {
	Share     float64         `json:"share"`
	For       metav1.Duration `json:"for"`
	PerSecond float64         `json:"perSecond"`
}

// Kill runs a command that kills something, and changes one ConfigMap of each gateway at once. Latency: from when the command began to the
// gateway's store. Each is a program and its arguments, without a shell.
type Kill struct {
	Command []string `json:"command"`
	// Restore runs at the end of the phase, also of one that failed or was interrupted; it starts again what was killed. Empty: nothing does.
	Restore []string `json:"restore,omitempty"`
}

// Services creates Services of one endpoint each, those that an earlier phase has not created, and then moves one endpoint after the other to
// another address. Latency, if the plan has AllServices: from when a move was due to the store of each gateway.
type Services struct {
	Count     int             `json:"count"`
	PerSecond float64         `json:"perSecond"`
	For       metav1.Duration `json:"for"`
}

// Storm closes all links at once. Latency: from then to the next link.
type Storm struct{}

// Idle changes nothing.
type Idle struct {
	For metav1.Duration `json:"for"`
}

//go:embed builtin/short.yaml
var short []byte

//go:embed builtin/1000.yaml
var thousand []byte

//go:embed builtin/10000.yaml
var tenThousand []byte

// Builtin returns a built-in plan; ok is false for another name.
func Builtin(name string) (text []byte, ok bool) {
	switch name {
	case "short":
		return short, true
	case "1000":
		return thousand, true
	case "10000":
		return tenThousand, true
	}
	return nil, false
}

// Parse reads a plan. An error names each field that is wrong.
func Parse(text []byte) (Plan, error) {
	var p Plan
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return p, fmt.Errorf("plan: %w", err)
	}
	unknown, err := json.UnmarshalStrict(data, &p)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return p, fmt.Errorf("plan: %w: docs/operations/loadtest.md lists the fields", err)
	}
	if err := p.validate(); err != nil {
		return p, fmt.Errorf("plan:\n%w", err)
	}
	if p.Settle.Duration == 0 {
		p.Settle.Duration = defaultSettle
	}
	for i := range p.Phases {
		if p.Phases[i].Timeout.Duration == 0 {
			p.Phases[i].Timeout.Duration = defaultTimeout
		}
	}
	return p, nil
}

// Gateways returns how many gateways join in all phases.
func (p Plan) Gateways() (all int) {
	for _, phase := range p.Phases {
		if phase.Join != nil {
			all += phase.Join.Gateways
		}
	}
	return all
}

// Kind returns the name of the phase's kind.
func (p Phase) Kind() string {
	for _, k := range p.kinds() {
		if k.set {
			return k.name
		}
	}
	return ""
}

type kind struct {
	name string
	set  bool
}

func (p Phase) kinds() []kind {
	return []kind{
		{"join", p.Join != nil},
		{"pods", p.Pods != nil},
		{"churn", p.Churn != nil},
		{"rollout", p.Rollout != nil},
		{"cut", p.Cut != nil},
		{"kill", p.Kill != nil},
		{"storm", p.Storm != nil},
		{"idle", p.Idle != nil},
		{"services", p.Services != nil},
	}
}

func (p Plan) validate() error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("  %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if p.APIVersion != APIVersion {
		fault("apiVersion", "is %q, write %s", p.APIVersion, APIVersion)
	}
	if p.Settle.Duration < 0 {
		fault("settle", "is %s, write a positive duration", p.Settle.Duration)
	}
	for i, c := range p.Metrics {
		if u, err := url.Parse(c.URL); err != nil || c.Name == "" || u.Scheme != "http" && u.Scheme != "https" {
			fault(fmt.Sprintf("metrics[%d]", i), "write a name and an address http://HOST:PORT/metrics")
		}
	}
	if len(p.Phases) == 0 || p.Phases[0].Join == nil {
		fault("phases", "the first phase must be join")
	}
	if n := p.Gateways(); n > maxGateways {
		fault("phases", "%d gateways join, at most %d: use several swarms", n, maxGateways)
	}
	pods := false
	for i, phase := range p.Phases {
		at := fmt.Sprintf("phases[%d]", i)
		pods = pods && phase.Join == nil || phase.Pods != nil // gateways that join later have none
		phase.validate(at, pods, fault)
	}
	return errors.Join(faults...)
}

// validate checks one phase; pods says that this phase or one before it has created pods at all gateways.
func (p Phase) validate(at string, pods bool, fault func(field, format string, args ...any)) {
	var set []string
	for _, k := range p.kinds() {
		if k.set {
			set = append(set, k.name)
		}
	}
	if len(set) != 1 {
		fault(at, "has the kinds [%s], write exactly one", strings.Join(set, " "))
		return
	}
	at += "." + set[0]
	positive := func(field string, value float64) {
		if value <= 0 {
			fault(at+"."+field, "is %v, write more than 0", value)
		}
	}
	if !pods && (p.Churn != nil || p.Rollout != nil || p.Cut != nil || p.Kill != nil) {
		fault(at, "needs a phase pods before it, after the last join")
	}
	switch {
	case p.Join != nil:
		positive("gateways", float64(p.Join.Gateways))
		positive("perSecond", p.Join.PerSecond)
	case p.Pods != nil:
		positive("perGateway", float64(p.Pods.PerGateway))
		positive("perSecond", p.Pods.PerSecond)
	case p.Churn != nil:
		positive("perSecond", p.Churn.PerSecond)
		positive("for", p.Churn.For.Seconds())
	case p.Rollout != nil:
		positive("perSecond", p.Rollout.PerSecond)
	case p.Cut != nil:
		positive("share", p.Cut.Share)
		positive("for", p.Cut.For.Seconds())
		positive("perSecond", p.Cut.PerSecond)
		if p.Cut.Share > 1 {
			fault(at+".share", "is %v, write at most 1", p.Cut.Share)
		}
	case p.Kill != nil:
		positive("command", float64(len(p.Kill.Command)))
	case p.Idle != nil:
		positive("for", p.Idle.For.Seconds())
	case p.Services != nil:
		positive("count", float64(p.Services.Count))
		positive("perSecond", p.Services.PerSecond)
		positive("for", p.Services.For.Seconds())
		if p.Services.Count > maxServices {
			fault(at+".count", "is %d, write at most %d", p.Services.Count, maxServices)
		}
	}
}
