package scopes

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Registry stores one value per node for all replicas. Calls may be concurrent.
type Registry interface {
	// Get returns the last value; revision 0: there is none.
	Get(ctx context.Context, node string) (value []byte, revision uint64, err error)
	// Put replaces the value of a revision. If there is another revision by now, the error wraps wire.ErrConflict.
	Put(ctx context.Context, node string, value []byte, revision uint64) error
	// Delete removes the value of a revision, with the same error.
	Delete(ctx context.Context, node string, revision uint64) error
	// Watch calls each for every existing value, then calls all, then calls each for every change, until ctx ends. A
	// value of nil: it was removed. It may report older values again.
	Watch(ctx context.Context, each func(node string, value []byte), all func()) error
}

// NodeSource provides the rest of the cloud's knowledge about nodes. Calls may be concurrent and must not block.
type NodeSource struct {
	// IsOwned reports whether this replica owns the node.
	IsOwned func(node string) bool
	// Exists reports whether there is a Node object.
	Exists func(node string) bool
	// RunsServiceAccount reports whether a pod of that service account is bound to the node and has not ended.
	RunsServiceAccount func(node, namespace, account string) bool
	// OnChange is called when the result of Granted for a node has changed.
	OnChange func(node string)
}

// Config configures a GrantController. The zero value works.
type Config struct {
	// PerNode is the maximum number of scopes of one node; 0: 64.
	PerNode int
	// Objects is the maximum number of objects in one scope when it is granted and evaluated again; 0: 20,000.
	Objects int
	// JudgeEvery is the interval between evaluations of each node's scopes; 0: 2 minutes. RBAC and pods are watched, so
	// these evaluations detect changes of other authorizers, of the size of a scope, and of what the API serves.
	JudgeEvery time.Duration
	// Protected are the namespaces on which no scope is granted. A scope on all namespaces leaves them out.
	Protected controllers.ProtectedNamespaces
	// Users are users that every node may request scopes for, besides its own pods' accounts and itself.
	Users []string
	// Metrics registers the controller's metrics; nil: they are kept and not exposed.
	Metrics prometheus.Registerer
}

const (
	defaultPerNode    = 64
	defaultObjects    = 20_000
	defaultJudgeEvery = 2 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.PerNode == 0 {
		c.PerNode = defaultPerNode
	}
	if c.Objects == 0 {
		c.Objects = defaultObjects
	}
	if c.JudgeEvery == 0 {
		c.JudgeEvery = defaultJudgeEvery
	}
	return c
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var faults []error
	if c.PerNode < 0 || c.PerNode > wire.MaxScopes {
		faults = append(faults, errors.New("scopes: the number of a node's scopes is out of range"))
	}
	if c.Objects < 0 || c.JudgeEvery < 0 {
		faults = append(faults, errors.New("scopes: objects or judge every is negative"))
	}
	return errors.Join(faults...)
}

// Rules returns the RBAC rules that cloudcore needs for this package. In addition, cloudcore must be able to list and
// watch the resources that nodes may have scopes on.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{
			APIGroups: []string{rbacv1.GroupName}, Verbs: []string{"list", "watch"},
			Resources: []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"},
		},
	}
}

type metrics struct {
	reviews    prometheus.Counter
	judged     prometheus.Counter
	errors     prometheus.Counter
	calls      *prometheus.CounterVec
	granted    prometheus.GaugeFunc
	refusals   *prometheus.CounterVec
	requesters prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, granted, nodes func() float64) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "frond_scopes_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "frond_scopes_" + name, Help: help}, []string{label})
	}
	return &metrics{
		reviews:  counter("reviews_total", "SubjectAccessReviews made to judge what nodes' components want."),
		judged:   counter("judged_total", "Times that a node's scopes were judged."),
		errors:   counter("errors_total", "Judgements that could not be stored and are tried again."),
		calls:    vec("requests_total", "Requests of nodes, by what came of them: changed, same, stale.", "result"),
		refusals: vec("refusals_total", "Verdicts on the wishes of nodes that were no, by reason.", "reason"),
		granted: f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "frond_scopes_granted", Help: "Scopes granted to the nodes that this replica owns.",
		}, granted),
		requesters: f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "frond_scopes_nodes", Help: "Nodes of the cluster that ever said what they want.",
		}, nodes),
	}
}
