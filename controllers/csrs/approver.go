package csrs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

const (
	// workers is the number of concurrent decisions.
	workers             = 4
	retryBase, retryMax = 100 * time.Millisecond, 10 * time.Second
	writeTimeout        = 10 * time.Second
	// recheckAfter is the delay before a request that was left undecided, or that another replica has to decide, is
	// checked again: its node may not be in the cache yet, for example.
	recheckAfter = 5 * time.Second
	// A node gets certificateBudget certificates at once and then one every budgetEvery. A kubelet makes a request at
	// its first start, when its names change, and once in 70 to 90 % of a certificate's life, which is a year unless
	// the signer says less.
	certificateBudget = 8
	budgetEvery       = 10 * time.Minute
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	certificates := []string{certificatesv1.GroupName}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: certificates, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"list", "watch"}},
		{APIGroups: certificates, Resources: []string{"certificatesigningrequests/approval"}, Verbs: []string{"update"}},
		{
			APIGroups: certificates, Resources: []string{"signers"}, Verbs: []string{"approve"},
			ResourceNames: []string{certificatesv1.KubeletServingSignerName},
		},
	}
}

// Approver decides on the certificate requests of gateways.
type Approver struct {
	names     AllowedNames
	kube      kubernetes.Interface
	objects   cache.Cache
	owns      func(node string) bool
	warn      func(node, reason, message string)
	decisions *prometheus.CounterVec
	log       *zap.Logger
	queue     controllers.Queue[string]

	mu      sync.Mutex
	budgets map[string]*rate.Limiter // by node; guarded by mu
}

// New creates an Approver. objects must serve Nodes and CertificateSigningRequests; warn records an event on a node and
// must not block; metrics may be nil.
func New(names AllowedNames, kube kubernetes.Interface, objects cache.Cache, owns func(node string) bool,
	warn func(node, reason, message string), metrics prometheus.Registerer, log *zap.Logger,
) *Approver {
	return &Approver{
		names: names, kube: kube, objects: objects, owns: owns, warn: warn, log: log, budgets: map[string]*rate.Limiter{},
		decisions: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "frond_csr_decisions_total",
			Help: "Requests of gateways for a serving certificate, by what came of them: approved, denied; delayed when the node asks too often.",
		}, []string{"decision"}),
	}
}

// Start decides on requests until ctx ends and then returns nil. The caller must start the cache.
func (a *Approver) Start(ctx context.Context) error {
	a.queue = controllers.NewQueue[string](retryBase, retryMax)
	defer a.queue.ShutDown()
	stop, err := controllers.Follow(ctx, a.objects, &certificatesv1.CertificateSigningRequest{}, func(csr *certificatesv1.CertificateSigningRequest) {
		if requestorNode(csr) != "" {
			a.queue.Add(csr.Name)
		}
	}, nil)
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	defer stop()
	controllers.ProcessQueue(ctx, a.queue, workers, a.processRequest)
	return nil
}

func (a *Approver) processRequest(ctx context.Context, name string) error {
	again, err := a.reconcileRequest(ctx, name)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("certificate request not decided, trying again", zap.String("request", name), zap.Error(err))
	}
	if again > 0 {
		a.queue.AddAfter(name, again)
	}
	return err
}

// reconcileRequest decides on one request, or returns the delay before the next check; 0: the request is no longer for this replica.
func (a *Approver) reconcileRequest(ctx context.Context, name string) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := a.objects.Get(ctx, client.ObjectKey{Name: name}, csr); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	owner := requestorNode(csr)
	switch {
	case owner == "":
		return 0, nil
	case !a.owns(owner):
		return recheckAfter, nil // its owner may stop before it has decided
	}
	node := &corev1.Node{}
	switch err := a.objects.Get(ctx, client.ObjectKey{Name: owner}, node); {
	case apierrors.IsNotFound(err):
		node = nil
	case err != nil:
		return 0, err
	}
	what, why := decide(csr, owner, node, a.names)
	if what == leaveUndecided {
		return recheckAfter, nil
	}
	if what == approveRequest {
		if wait := a.spendBudget(owner); wait > 0 {
			a.decisions.WithLabelValues("delayed").Inc()
			return wait, nil
		}
	}
	return 0, a.writeDecision(ctx, csr, owner, what, why)
}

// spendBudget takes one certificate from a node's budget, or returns the time until the next one is available.
func (a *Approver) spendBudget(node string) (wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.budgets[node]
	if b == nil {
		b = rate.NewLimiter(rate.Every(budgetEvery), certificateBudget)
		a.budgets[node] = b
	}
	if b.Allow() {
		return 0
	}
	return budgetEvery
}

func (a *Approver) writeDecision(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, node string, what decision, why error) error {
	csr = csr.DeepCopy()
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
		Reason: names.ReasonGatewayServing, Message: "for names of node " + node + " alone",
	}
	if what == denyRequest {
		condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, names.ReasonNotTheNodesNames, why.Error()
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	_, err := a.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{FieldManager: names.ManagerCloudcore})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write the decision: %w", err)
	}
	a.decisions.WithLabelValues(string(what)).Inc()
	if what == approveRequest {
		a.log.Info("certificate approved", zap.String("node", node), zap.String("request", csr.Name))
		return nil
	}
	a.log.Warn("certificate denied", zap.String("node", node), zap.String("request", csr.Name), zap.Error(why))
	a.warn(node, names.EventCertificateDenied, "its request "+csr.Name+" was denied: "+why.Error())
	return nil
}
