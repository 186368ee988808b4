package identity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/identity"
)

// Record is the part of a NodeIdentity that is kept in memory: some 300 bytes a node. It never changes; a newer one replaces it.
type Record struct {
	Node          string
	Key, Previous string
	Expires       time.Time
	Revoked       []string
	// RevokedAt is zero for a node that is not revoked.
	RevokedAt time.Time
}

func recordOf(o *identity.NodeIdentity) *Record {
	r := &Record{
		Node: o.Name, Key: o.Spec.Key, Previous: o.Spec.Previous, Expires: o.Spec.Expires.Time, Revoked: slices.Clone(o.Spec.Revoked),
	}
	if o.Spec.RevokedAt != nil {
		r.RevokedAt = o.Spec.RevokedAt.Time
	}
	return r
}

// ValidKeys returns the keys that authenticate as the node.
func (r *Record) ValidKeys() []string {
	return slices.DeleteFunc([]string{r.Key, r.Previous}, func(key string) bool { return key == "" })
}

// Records holds the records of all nodes' keys. Make it with NewRecords and run Follow.
type Records struct {
	objects client.WithWatch
	synced  chan struct{}

	mu     sync.RWMutex
	byNode map[string]*Record // guarded by mu
	// holders maps each valid key to its node; guarded by mu.
	holders map[string]string
	// revoked counts, for each key, the records that reject it permanently; guarded by mu.
	revoked map[string]int
	// changed is closed at each change, and replaced; guarded by mu.
	changed chan struct{}
	loaded  bool // guarded by mu; synced is closed
}

// Rules returns the RBAC rules that cloudcore needs for this package. Those on Secrets are for bootstrap tokens, in
// identity.TokenNamespace.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{identity.Group}, Resources: []string{identity.Resource}, Verbs: []string{"get", "list", "watch", "create", "update"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
	}
}

// NewClient creates a client of NodeIdentities.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := identity.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// NewRecords creates an empty collection.
func NewRecords(objects client.WithWatch) *Records {
	return &Records{
		objects: objects, synced: make(chan struct{}), changed: make(chan struct{}),
		byNode: make(map[string]*Record), holders: make(map[string]string), revoked: make(map[string]int),
	}
}

// Synced returns a channel that closes when all records were read once.
func (r *Records) Synced() <-chan struct{} { return r.synced }

// Follow watches the NodeIdentities until ctx ends and then returns nil. changed is called for each change after it is
// stored here, with nil for a record that does not exist, and must not block. Call Follow once.
func (r *Records) Follow(ctx context.Context, changed func(was, is *Record)) error {
	lw := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			var list identity.NodeIdentityList
			err := r.objects.List(ctx, &list, &client.ListOptions{Raw: &options})
			return &list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return r.objects.Watch(ctx, &identity.NodeIdentityList{}, &client.ListOptions{Raw: &options})
		},
	}
	toolscache.NewReflectorWithOptions(lw, &identity.NodeIdentity{}, reflectorStore{r, changed},
		toolscache.ReflectorOptions{Name: "identities"}).RunWithContext(ctx)
	return nil
}

// Lookup returns the record of a node, or nil.
func (r *Records) Lookup(node string) *Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byNode[node]
}

// ReadLive reads the record of a node from Kubernetes, nil if there is none. The one in memory may be older.
func (r *Records) ReadLive(ctx context.Context, node string) (*Record, error) {
	object := &identity.NodeIdentity{}
	err := r.objects.Get(ctx, client.ObjectKey{Name: node}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nothing there is an answer
	case err != nil:
		return nil, fmt.Errorf("read the identity of %s: %w", node, err)
	}
	return recordOf(object), nil
}

// Holder returns the node that a key authenticates as, or "".
func (r *Records) Holder(key string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.holders[key]
}

// IsRevoked reports whether a key is rejected permanently.
func (r *Records) IsRevoked(key string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.revoked[key] > 0
}

// All returns each record, in no order.
func (r *Records) All() []*Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.byNode))
}

// AwaitKey waits until a key is recorded here for a node, or ctx ends.
func (r *Records) AwaitKey(ctx context.Context, node, key string) {
	for {
		r.mu.RLock()
		news, known := r.changed, r.holders[key] == node
		r.mu.RUnlock()
		if known {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// putRecord stores the newer record of a node; nil for is removes it.
func (r *Records) putRecord(node string, is *Record) (was *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.byNode[node]
	if was != nil {
		for _, key := range was.ValidKeys() {
			if r.holders[key] == node {
				delete(r.holders, key)
			}
		}
		for _, key := range was.Revoked {
			if r.revoked[key]--; r.revoked[key] == 0 {
				delete(r.revoked, key)
			}
		}
		delete(r.byNode, node)
	}
	if is != nil {
		r.byNode[node] = is
		for _, key := range is.ValidKeys() {
			r.holders[key] = node
		}
		for _, key := range is.Revoked {
			r.revoked[key]++
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return was
}

// reflectorStore adapts Records to the store of client-go's reflector.
type reflectorStore struct {
	*Records
	onChange func(was, is *Record)
}

func (s reflectorStore) Add(object any) error {
	o, ok := object.(*identity.NodeIdentity)
	if !ok {
		return fmt.Errorf("a %T among the identities", object)
	}
	is := recordOf(o)
	s.onChange(s.putRecord(is.Node, is), is)
	return nil
}

func (s reflectorStore) Update(object any) error { return s.Add(object) }

func (s reflectorStore) Delete(object any) error {
	if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	o, ok := object.(*identity.NodeIdentity)
	if !ok {
		return fmt.Errorf("a %T among the identities", object)
	}
	if was := s.putRecord(o.Name, nil); was != nil {
		s.onChange(was, nil)
	}
	return nil
}

func (s reflectorStore) Replace(objects []any, _ string) error {
	there := make(map[string]bool, len(objects))
	for _, object := range objects {
		if err := s.Add(object); err != nil {
			return err
		}
		there[object.(*identity.NodeIdentity).Name] = true
	}
	for _, record := range s.All() {
		if !there[record.Node] {
			s.onChange(s.putRecord(record.Node, nil), nil)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		s.loaded = true
		close(s.synced)
	}
	return nil
}

func (reflectorStore) Resync() error { return nil }
