package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
)

// ErrRestored ends a replica when the Kubernetes API went back in time: its memory of the cluster is invalid, so it
// must be restarted.
var ErrRestored = errors.New("the Kubernetes API went back in time: restart with another cluster epoch")

const (
	// LeaseName is the Lease in kube-system that is a counter, and registryKey of the registry stores its last value: an etcd that is
	// restored counts again values that were counted before.
	LeaseName   = "frond-history"
	registryKey = "cluster"
	// Interval is how often the Lease is incremented. It is therefore the age of the youngest copy of etcd whose
	// restore is detected: one write to Kubernetes and one to the hub per cluster, whatever its size.
	Interval = 10 * time.Second
	// checkTimeout bounds one check.
	checkTimeout = 5 * time.Second
	// retryPause is the pause after a failed check, and between requested checks.
	retryPause = 300 * time.Millisecond
)

// Rules returns the RBAC rules that Tracker needs.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{metav1.NamespaceSystem}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{LeaseName}, Verbs: []string{"get", "update"}},
	}
}

// record is the hub's record of the Kubernetes history; the value of registryKey.
type record struct {
	// Cluster is the UID of the namespace kube-system, created with the cluster.
	Cluster string `json:"cluster"`
	// Restores counts how often the history went back.
	Restores int `json:"restores,omitempty"`
	// Since is when the last restore was detected, or the replacement of the first cluster by another; zero if that
	// never happened.
	Since time.Time `json:"since,omitzero"`
	// Count and Version are the Lease's count and resourceVersion when they were last read.
	Count   int64  `json:"count"`
	Version string `json:"version"`
}

// clusterEpoch returns the cluster epoch: the cluster's UID, and after a restore also the number of restores.
func (c record) clusterEpoch() string {
	if c.Restores == 0 {
		return c.Cluster
	}
	return c.Cluster + "/" + strconv.Itoa(c.Restores)
}

// advanceTo returns the record after the Lease was read with a count and version; found is false if the Lease had to be
// created. The count detects any restore to a copy older than this record, also if etcd was made to continue with
// higher revisions. The version detects a copy that is older than the Lease.
func (c record) advanceTo(cluster string, found bool, count int64, version string, now time.Time) (record, error) {
	n := c
	n.Cluster, n.Count, n.Version = cluster, count, version
	if c.Cluster == "" {
		return n, nil
	}
	order, err := resourceversion.CompareResourceVersion(version, c.Version)
	if err != nil {
		return c, fmt.Errorf("compare versions %q and %q: %w", version, c.Version, err)
	}
	switch {
	case c.Cluster != cluster:
		n.Restores, n.Since = 0, now
	case found && count <= c.Count, order < 0:
		n.Restores, n.Since = c.Restores+1, now
	}
	return n, nil
}

// Tracker detects when the Kubernetes API goes back in time, as after a restore of etcd. All replicas share their
// observations through the hub.
type Tracker struct {
	kube          kubernetes.Interface
	kv            jetstream.KeyValue
	isCounter     func() bool
	log           *zap.Logger
	interval      time.Duration
	checkRequests chan struct{}
	last          record

	mu         sync.Mutex
	verifiedAt time.Time // guarded by mu; when the last check began that found the history unbroken
}

// Open performs the first check, and retries it until it succeeds or ctx ends. interval is Interval,
// except in tests; isCounter reports whether this replica is the one that increments the Lease; several may do so at a time.
func Open(ctx context.Context, interval time.Duration, kube kubernetes.Interface, kv jetstream.KeyValue, isCounter func() bool, log *zap.Logger) (*Tracker, error) {
	h := &Tracker{kube: kube, kv: kv, isCounter: isCounter, log: log, interval: interval, checkRequests: make(chan struct{}, 1)} // one request serves all callers
	for {
		began := time.Now()
		c, err := h.updateRecord(ctx)
		if err == nil {
			h.last, h.verifiedAt = c, began
			return h, nil
		}
		log.Info("history of the cluster not read", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("history of the cluster: %w", errors.Join(err, ctx.Err()))
		case <-time.After(retryPause):
		}
	}
}

// Epoch returns the cluster epoch, which does not change while the process lives.
func (h *Tracker) Epoch() string { return h.last.clusterEpoch() }

// Restored returns when the history last went back; zero if it never did.
func (h *Tracker) Restored() time.Time { return h.last.Since }

// VerifiedSince reports whether the history was found unbroken by a check after a moment, and requests a check if not.
// It does not block.
func (h *Tracker) VerifiedSince(after time.Time) bool {
	h.mu.Lock()
	ok := h.verifiedAt.After(after)
	h.mu.Unlock()
	if !ok {
		select {
		case h.checkRequests <- struct{}{}:
		default:
		}
	}
	return ok
}

// Start checks the history until ctx ends, and then returns nil. It returns ErrRestored when the history went back.
func (h *Tracker) Start(ctx context.Context) error {
	watcher, err := h.kv.Watch(ctx, registryKey)
	if err != nil {
		return fmt.Errorf("watch the history of the cluster: %w", err)
	}
	defer func() { _ = watcher.Stop() }() // fails only when the connection is gone
	ticker := time.NewTicker(h.interval)
	defer ticker.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case entry, ok := <-watcher.Updates():
			if !ok {
				return fmt.Errorf("the watch of the history ended: %w", context.Cause(ctx))
			}
			if c, known := h.decodeEntry(entry); known && c.clusterEpoch() != h.Epoch() {
				return h.restoredError(c)
			}
			continue
		case <-ticker.C:
		case <-h.checkRequests:
			asked = true
		}
		if !asked && !h.isCounter() {
			continue
		}
		if err := h.checkEpoch(ctx); err != nil {
			return err
		}
		select { // requests that arrive meanwhile are served by one check
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// checkEpoch performs one check. Its error is ErrRestored; a failed check is repeated at the next interval.
func (h *Tracker) checkEpoch(ctx context.Context) error {
	began := time.Now()
	c, err := h.updateRecord(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		h.log.Info("history of the cluster not read", zap.Error(err))
	case c.clusterEpoch() != h.Epoch():
		return h.restoredError(c)
	default:
		h.mu.Lock()
		h.verifiedAt = began
		h.mu.Unlock()
	}
	return nil //nolint:nilerr // a look that failed is told above and repeated in time
}

func (h *Tracker) restoredError(c record) error {
	return fmt.Errorf("cluster epoch %s, before %s: %w", c.clusterEpoch(), h.Epoch(), ErrRestored)
}

// decodeEntry decodes an entry of the registry; an invalid one counts as none.
func (h *Tracker) decodeEntry(entry jetstream.KeyValueEntry) (c record, known bool) {
	if entry == nil || entry.Operation() != jetstream.KeyValuePut {
		return record{}, false
	}
	if err := json.Unmarshal(entry.Value(), &c); err != nil {
		h.log.Error("entry of the registry not readable, it is written again", zap.Error(err))
		return record{}, false
	}
	return c, c.Cluster != ""
}

// updateRecord increments the Lease, compares, and stores the result. The registry is read before the Lease, and
// written after it: within one history the Lease is therefore never behind the registry.
func (h *Tracker) updateRecord(ctx context.Context) (record, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var before record
	var revision uint64
	entry, err := h.kv.Get(ctx, registryKey)
	switch {
	case err == nil:
		before, _ = h.decodeEntry(entry)
		revision = entry.Revision()
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return record{}, fmt.Errorf("read the registry: %w", err)
	}
	if before.Cluster == "" {
		before = h.last // the entry was removed
	}
	ns, err := h.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return record{}, fmt.Errorf("read the cluster's identity: %w", err)
	}
	found, lease, err := h.incrementLease(ctx)
	if err != nil {
		return record{}, err
	}
	after, err := before.advanceTo(string(ns.UID), found, int64(*lease.Spec.LeaseTransitions), lease.ResourceVersion, time.Now().UTC())
	if err != nil {
		return record{}, err
	}
	value, err := json.Marshal(after)
	if err != nil {
		return record{}, fmt.Errorf("encode for the registry: %w", err)
	}
	if revision == 0 {
		_, err = h.kv.Create(ctx, registryKey, value)
	} else {
		_, err = h.kv.Update(ctx, registryKey, value, revision)
	}
	if err != nil {
		return record{}, fmt.Errorf("write the registry: %w", err) // another replica was first, or the result is unknown: check again
	}
	return after, nil
}

// incrementLease adds one to the Lease, and creates it if it is missing.
func (h *Tracker) incrementLease(ctx context.Context) (found bool, lease *coordinationv1.Lease, err error) {
	leases := h.kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease, err = leases.Get(ctx, LeaseName, metav1.GetOptions{})
	now := metav1.NewMicroTime(time.Now())
	if apierrors.IsNotFound(err) {
		one := int32(1)
		lease, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: LeaseName, Namespace: metav1.NamespaceSystem},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &now, LeaseTransitions: &one},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, nil, fmt.Errorf("make the lease %s: %w", LeaseName, err)
		}
		return false, lease, nil
	}
	if err != nil {
		return false, nil, fmt.Errorf("read the lease %s: %w", LeaseName, err)
	}
	n := int32(1)
	if last := lease.Spec.LeaseTransitions; last != nil {
		n += *last
	}
	lease.Spec.RenewTime, lease.Spec.LeaseTransitions = &now, &n
	if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return true, nil, fmt.Errorf("count the lease %s: %w", LeaseName, err)
	}
	return true, lease, nil
}
