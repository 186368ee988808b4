// Package relay watches what the gateway does not store, by asking the cloud again and again.
//
// Leases and events change constantly, and an old one is useless: an outdated leader is worse than an unknown one. Storing
// them would cost a synced write for each renewal, so a watch of them is relayed: the cloud is polled for the next changes,
// with the program's own token. Kubernetes authorizes each request. Without a link there are no events.
//
// The kubelet waits for its certificate by a watch of one CertificateSigningRequest, which is polled too.
package relay

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/localapi/watchstream"
)

// MaxRelays limits the relayed watches of a gateway. The cloud serves twice as many of one node: a request whose client
// has gone keeps its slot until its time is over.
const MaxRelays = 32

// Relays relays watches to the cloud for programs other than the node, within limits. Its methods may be called concurrently.
type Relays struct {
	cloud      *cloudcall.Client
	online     func() bool
	linkBudget func() int
	limits     *limit.Limits
	slots      chan struct{} // a token for each relayed watch
}

// New creates Relays. online reports whether the cloud can be asked. linkBudget returns how many bytes the link accepts at a time;
// nil, or a result of 0: not known.
func New(cloud *cloudcall.Client, online func() bool, linkBudget func() int, limits *limit.Limits) *Relays {
	return &Relays{cloud: cloud, online: online, linkBudget: linkBudget, limits: limits, slots: make(chan struct{}, MaxRelays)}
}

// Open returns how many watches are relayed now.
func (r *Relays) Open() int { return len(r.slots) }

// Of returns the watcher of a resource.
func (r *Relays) Of(resource *kinds.Resource) rest.Watcher {
	return resourceRelay{relays: r, resource: resource}
}

// resourceRelay relays the watches of one resource.
type resourceRelay struct {
	relays   *Relays
	resource *kinds.Resource
}

// Watch starts a relayed watch. Its error is a status: Kubernetes' own, or that the cloud cannot be asked.
func (r resourceRelay) Watch(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	if !r.relays.online() {
		return nil, respond.Unreachable(wire.ErrOffline)
	}
	free, err := r.relays.acquireSlot(ctx)
	if err != nil {
		return nil, err
	}
	w := &relayedWatch{
		relays: r.relays, resource: r.resource, path: r.resource.CloudPath(wire.Key{Namespace: request.NamespaceValue(ctx)}), query: relayQuery(opts),
		version: opts.ResourceVersion, bookmarks: opts.AllowWatchBookmarks, objectBytes: defaultObjectBytes,
	}
	if n, err := strconv.ParseUint(w.version, 10, 64); err == nil && n >= kinds.LocalVersionBase {
		free()
		return nil, apierrors.NewResourceExpired("the resource version is the gateway's own, and the cloud's is wanted: list again")
	}
	first, next, err := w.fetchInitial(ctx, opts)
	if err != nil {
		free()
		return nil, err
	}
	return watchstream.Start(ctx, func(ctx context.Context, out watchstream.Sender) {
		defer free()
		w.out = out
		if w.sendList(ctx, first) {
			first = nil // frees its memory while the watch continues
			w.run(ctx, next)
		}
	}), nil
}

// acquireSlot acquires a slot for the caller of ctx. It may be freed several times.
func (r *Relays) acquireSlot(ctx context.Context) (free func(), err error) {
	leave, err := r.limits.AdmitRelay(caller.Of(ctx))
	if err != nil {
		return nil, err
	}
	select {
	case r.slots <- struct{}{}:
	default:
		leave()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d watches of this gateway are relayed already", MaxRelays), respond.RetryAfterSeconds)
	}
	return sync.OnceFunc(func() {
		<-r.slots
		leave()
	}), nil
}
