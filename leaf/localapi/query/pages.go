package query

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

	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
)

const (
	// maxContinuations limits the lists of programs other than the node that are partly read at a time; the node itself has
	// the same limit. A list beyond the limit is answered whole.
	maxContinuations = 16
	// maxCallerContinuations limits the partly read lists of one program: its present list, and a repetition or another
	// one. The program's oldest list is dropped, and is listed again. A program never ends another program's list.
	maxCallerContinuations = 2
	// continuationTTL is how long the next page is kept after the previous one was read.
	continuationTTL = time.Minute
)

// pages holds the unread rest of lists that are read in pages, so that all pages of a list are of one moment: the
// store keeps no old versions. Expired entries are dropped when any list is read in pages.
type pages struct {
	mu      sync.Mutex
	pending []continuation // guarded by mu; the oldest first
}

// continuation is the unread rest of one list.
type continuation struct {
	token      string // token of the next page; it cannot be guessed
	owner      listOwner
	expiresAt  time.Time
	resource   *kinds.Resource
	namespace  string
	items      []runtime.Object
	revision   uint64
	unfiltered bool // nothing was filtered, so the client may be told the remaining count
}

// listOwner identifies the caller that reads a list.
type listOwner struct {
	account string
	node    bool
}

func ownerOf(ctx context.Context) listOwner {
	c := caller.Of(ctx)
	if c.Trusted {
		return listOwner{node: true}
	}
	return listOwner{account: c.QuotaKey()}
}

// save stores the rest of a list and returns its token, or "" if the lists of others leave no room.
func (p *pages) save(r continuation) string {
	r.token, r.expiresAt = rand.Text(), time.Now().Add(continuationTTL)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropExpired()
	own, all := 0, 0
	for _, other := range p.pending {
		if other.owner == r.owner {
			own++
		}
		if other.owner.node == r.owner.node {
			all++
		}
	}
	most := maxCallerContinuations
	if r.owner.node {
		most = maxContinuations
	}
	switch {
	case own >= most:
		first := slices.IndexFunc(p.pending, func(other continuation) bool { return other.owner == r.owner })
		p.pending = slices.Delete(p.pending, first, first+1)
	case all >= maxContinuations:
		return ""
	}
	p.pending = append(p.pending, r)
	return r.token
}

// load returns the continuation of a token, to its owner only. The token stays valid for a while: a client whose answer was
// lost asks again.
func (p *pages) load(token string, by listOwner, resource *kinds.Resource, namespace string) (continuation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropExpired()
	for _, r := range p.pending {
		if r.token == token && r.owner == by && r.resource.GVR == resource.GVR && r.namespace == namespace {
			return r, true
		}
	}
	return continuation{}, false
}

// dropExpired drops expired continuations. The caller holds mu.
func (p *pages) dropExpired() {
	now := time.Now()
	p.pending = slices.DeleteFunc(p.pending, func(r continuation) bool { return !now.Before(r.expiresAt) })
}

// firstPage returns the answer to a list: all items, or the requested number and a token for the rest. Like kube-apiserver,
// it returns all items if the client accepts old data.
func (p *pages) firstPage(ctx context.Context, resource *kinds.Resource, opts *metainternalversion.ListOptions,
	items []runtime.Object, revision uint64,
) (runtime.Object, error) {
	if opts == nil || opts.Limit <= 0 || opts.ResourceVersion == "0" {
		return resource.BuildList(items, revision)
	}
	unfiltered := (opts.LabelSelector == nil || opts.LabelSelector.Empty()) && (opts.FieldSelector == nil || opts.FieldSelector.Empty())
	return p.buildPage(continuation{
		owner: ownerOf(ctx), resource: resource, namespace: request.NamespaceValue(ctx), items: items, revision: revision, unfiltered: unfiltered,
	}, opts.Limit)
}

// nextPage returns the next page of a list.
func (p *pages) nextPage(ctx context.Context, resource *kinds.Resource, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
		return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	r, ok := p.load(opts.Continue, ownerOf(ctx), resource, request.NamespaceValue(ctx))
	if !ok {
		return nil, apierrors.NewResourceExpired("the rest of this list is no longer kept: list again without continue")
	}
	return p.buildPage(r, opts.Limit)
}

func (p *pages) buildPage(r continuation, limit int64) (runtime.Object, error) {
	if limit <= 0 || int64(len(r.items)) <= limit {
		return r.resource.BuildList(r.items, r.revision)
	}
	rest := r
	rest.items = slices.Clone(r.items[limit:]) // cloned, so that the page already read is not kept in memory with it
	token := p.save(rest)
	if token == "" {
		return r.resource.BuildList(r.items, r.revision)
	}
	list, err := r.resource.BuildList(r.items[:limit], r.revision)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetContinue(token)
	if left := int64(len(rest.items)); r.unfiltered {
		m.SetRemainingItemCount(&left)
	}
	return list, nil
}
