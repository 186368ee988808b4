package localapi

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// maxPaged is how many lists of programs that are not the node may be half read at a time, and as many of the node itself.
	// What does not fit is answered whole.
	maxPaged = 16
	// maxCallerPaged is how many of them are one program's: what it reads now, and the same once more or another. The one that it
	// began first gives way, and is listed again; nobody ends another's.
	maxCallerPaged = 2
	// pageKept is how long the next page is kept after the one before was read.
	pageKept = time.Minute
)

// pages holds what is left of lists that are read in pages, so that all pages of one are of one moment: the store keeps no
// old versions. What has expired goes when any list is read in pages.
type pages struct {
	mu    sync.Mutex
	begun []remainder // guarded by mu; the oldest first
}

// remainder is what has not been read of one list.
type remainder struct {
	token     string // of the next page; it cannot be guessed
	owner     owner
	until     time.Time
	resource  *resource
	namespace string
	items     []runtime.Object
	revision  uint64
	counted   bool // the client may know how much is left: nothing was filtered
}

// owner is whose a half read list is.
type owner struct {
	account string
	node    bool
}

func ownerOf(ctx context.Context) owner {
	c := callerOf(ctx)
	if c.trusted {
		return owner{node: true}
	}
	return owner{account: c.account()}
}

// keep remembers the rest of a list and returns the token for it, or "" if others' leave no room.
func (p *pages) keep(r remainder) string {
	r.token, r.until = rand.Text(), time.Now().Add(pageKept)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	own, all := 0, 0
	for _, other := range p.begun {
		if other.owner == r.owner {
			own++
		}
		if other.owner.node == r.owner.node {
			all++
		}
	}
	most := maxCallerPaged
	if r.owner.node {
		most = maxPaged
	}
	switch {
	case own >= most:
		first := slices.IndexFunc(p.begun, func(other remainder) bool { return other.owner == r.owner })
		p.begun = slices.Delete(p.begun, first, first+1)
	case all >= maxPaged:
		return ""
	}
	p.begun = append(p.begun, r)
	return r.token
}

// take returns what a token stands for, to its owner. It stays good for a while: a client whose answer was lost asks again.
func (p *pages) take(token string, by owner, e *endpoint, namespace string) (remainder, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire()
	for _, r := range p.begun {
		if r.token == token && r.owner == by && r.resource.gvr == e.r.gvr && r.namespace == namespace {
			return r, true
		}
	}
	return remainder{}, false
}

// expire drops what nobody has come for. It is called with mu held.
func (p *pages) expire() {
	now := time.Now()
	p.begun = slices.DeleteFunc(p.begun, func(r remainder) bool { return !now.Before(r.until) })
}

// firstPage is the answer to a list: all of it, or as much as was asked for and a token for the rest. As kube-apiserver,
// it gives all of what may be old.
func (e *endpoint) firstPage(ctx context.Context, opts *metainternalversion.ListOptions, items []runtime.Object, revision uint64) (runtime.Object, error) {
	if opts == nil || opts.Limit <= 0 || opts.ResourceVersion == "0" {
		return e.r.listOf(items, revision)
	}
	unfiltered := (opts.LabelSelector == nil || opts.LabelSelector.Empty()) && (opts.FieldSelector == nil || opts.FieldSelector.Empty())
	return e.page(remainder{
		owner: ownerOf(ctx), resource: e.r, namespace: request.NamespaceValue(ctx), items: items, revision: revision, counted: unfiltered,
	}, opts.Limit)
}

// nextPage goes on with a list.
func (e *endpoint) nextPage(ctx context.Context, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
		return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	r, ok := e.s.pages.take(opts.Continue, ownerOf(ctx), e, request.NamespaceValue(ctx))
	if !ok {
		return nil, apierrors.NewResourceExpired("the rest of this list is no longer kept: list again without continue")
	}
	return e.page(r, opts.Limit)
}

func (e *endpoint) page(r remainder, limit int64) (runtime.Object, error) {
	if limit <= 0 || int64(len(r.items)) <= limit {
		return e.r.listOf(r.items, r.revision)
	}
	rest := r
	rest.items = slices.Clone(r.items[limit:]) // the page that was read is not held with it
	token := e.s.pages.keep(rest)
	if token == "" {
		return e.r.listOf(r.items, r.revision)
	}
	list, err := e.r.listOf(r.items[:limit], r.revision)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetContinue(token)
	if left := int64(len(rest.items)); r.counted {
		m.SetRemainingItemCount(&left)
	}
	return list, nil
}
