package localapi

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// maxPaged is how many lists may be half read at a time; the one begun first gives way, and its reader lists again.
const maxPaged = 16

// pages holds what is left of lists that are read in pages, so that all pages of one are of one moment: the store keeps no
// old versions.
type pages struct {
	mu    sync.Mutex
	begun []remainder // guarded by mu; the oldest first
}

// remainder is what has not been read of one list.
type remainder struct {
	token     string // of the next page; it cannot be guessed
	resource  *resource
	namespace string
	items     []runtime.Object
	revision  uint64
	counted   bool // the client may know how much is left: nothing was filtered
}

// keep remembers the rest of a list and returns the token for it.
func (p *pages) keep(r remainder) string {
	r.token = rand.Text()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.begun) >= maxPaged {
		p.begun = slices.Delete(p.begun, 0, 1)
	}
	p.begun = append(p.begun, r)
	return r.token
}

// take returns what a token stands for. It stays good: a client whose answer was lost asks again.
func (p *pages) take(token string, e *endpoint, namespace string) (remainder, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.begun {
		if r.token == token && r.resource.gvr == e.r.gvr && r.namespace == namespace {
			return r, true
		}
	}
	return remainder{}, false
}

// firstPage is the answer to a list: all of it, or as much as was asked for and a token for the rest. As kube-apiserver,
// it gives all of what may be old.
func (e *endpoint) firstPage(ctx context.Context, opts *metainternalversion.ListOptions, items []runtime.Object, revision uint64) (runtime.Object, error) {
	if opts == nil || opts.Limit <= 0 || opts.ResourceVersion == "0" {
		return e.r.listOf(items, revision)
	}
	unfiltered := (opts.LabelSelector == nil || opts.LabelSelector.Empty()) && (opts.FieldSelector == nil || opts.FieldSelector.Empty())
	return e.page(remainder{resource: e.r, namespace: request.NamespaceValue(ctx), items: items, revision: revision, counted: unfiltered}, opts.Limit)
}

// nextPage goes on with a list.
func (e *endpoint) nextPage(ctx context.Context, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
		return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	r, ok := e.s.pages.take(opts.Continue, e, request.NamespaceValue(ctx))
	if !ok {
		return nil, apierrors.NewResourceExpired("the rest of this list is no longer kept: list again without continue")
	}
	return e.page(r, opts.Limit)
}

func (e *endpoint) page(r remainder, limit int64) (runtime.Object, error) {
	if limit <= 0 || int64(len(r.items)) <= limit {
		return e.r.listOf(r.items, r.revision)
	}
	now := r.items[:limit]
	r.items = r.items[limit:]
	list, err := e.r.listOf(now, r.revision)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetContinue(e.s.pages.keep(r))
	if left := int64(len(r.items)); r.counted {
		m.SetRemainingItemCount(&left)
	}
	return list, nil
}
