// Package completeness says of which kinds a gateway holds every object, and so whether an object that is not stored is absent.
//
// A false "absent" makes programs delete and create; a false "unknown" only makes them wait. So everything that is not proved is unknown.
package completeness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/demand"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// attachWait is how long a list waits for the first attach before it answers 503. Lists of a fresh gateway then end
	// with the attach, and not with a client's backoff of up to 30 s.
	attachWait = 20 * time.Second
	// attachPoll is how often a waiting list checks whether the store has attached: rare, short, and only on first start.
	attachPoll = 100 * time.Millisecond
)

// Evaluator evaluates the store's markers and the scopes that programs follow. It has no state of its own.
type Evaluator struct {
	node   string
	store  *store.Store
	scopes *demand.Tracker
}

// New creates the Evaluator of a node.
func New(node string, st *store.Store, scopes *demand.Tracker) *Evaluator {
	return &Evaluator{node: node, store: st, scopes: scopes}
}

// isAttached reports whether the store has ever been in sync with the cloud: from then on absence proves something.
func (e *Evaluator) isAttached() bool { return e.store.Cursor().StreamEpoch != "" }

// WaitAttached waits for a while until the store has been in sync with the cloud once, and reports whether it has.
func (e *Evaluator) WaitAttached(ctx context.Context) bool {
	if e.isAttached() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	tick := time.NewTicker(attachPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if e.isAttached() {
				return true
			}
		}
	}
}

// ProvesAbsence reports whether an object that is not in the store does not exist.
func (e *Evaluator) ProvesAbsence(r *kinds.Resource, key wire.Key) bool {
	switch {
	case r.Placement == kinds.InMemory:
		return true
	case r.Completeness != kinds.Authoritative:
		return false
	case !r.Namespaced && key.Name != e.node:
		return false // another node: the cloud does not send it
	case r.Optional && e.CheckDelivered(r) != nil:
		return false
	}
	return e.isAttached()
}

// IsAlwaysComplete reports whether a list needs no scope: every gateway has the kinds delivered to all, and its own pods and node.
func (e *Evaluator) IsAlwaysComplete(r *kinds.Resource, selector string) bool {
	if !e.isAttached() {
		return false
	}
	only := func(field string) bool {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			return false
		}
		value, ok := parsed.RequiresExactMatch(field)
		return ok && value == e.node
	}
	switch {
	case r.GVR == kinds.CoreResource("pods"):
		return only(kinds.FieldNodeName)
	case r.GVR == kinds.CoreResource("nodes"):
		return only(kinds.FieldName)
	case r.OfNode:
		return only(kinds.FieldNodeName) && e.CheckDelivered(r) == nil
	}
	return r.Completeness == kinds.FullyDelivered && (!r.ByNeed || !e.servicesByNeed())
}

// servicesByNeed reports whether the cloud sends Services and EndpointSlices by need. The markers of the scopes on them then prove
// what is complete; they come before the cloud says so.
func (e *Evaluator) servicesByNeed() bool {
	_, err := e.store.Get(wire.ServicesByNeedKey())
	return err == nil
}

// HoldsAll reports whether the gateway holds every object of a list or watch in a namespace, and the store's revision since which it
// does; 0: since ever.
func (e *Evaluator) HoldsAll(r *kinds.Resource, namespace string, opts *metainternalversion.ListOptions) (since uint64, ok bool) {
	selector := ""
	if opts != nil && opts.FieldSelector != nil {
		selector = opts.FieldSelector.String()
	}
	if e.IsAlwaysComplete(r, selector) {
		return 0, true
	}
	kind, since, ok := e.scopes.Complete(ScopeOf(r, namespace))
	return since, ok && kind.Version == r.GVR.Version
}

// ScopeOf returns the scope of a kind in a namespace.
func ScopeOf(r *kinds.Resource, namespace string) wire.Scope {
	return wire.Scope{Group: r.GVR.Group, Version: r.GVR.Version, Resource: r.GVR.Resource, Namespace: namespace}
}

// CheckDelivered returns the cloud's announcement about an optional kind. The error is a status: the cluster does not
// have the kind, or the cloud has not announced whether it sends it.
func (e *Evaluator) CheckDelivered(r *kinds.Resource) error {
	unknown := func(why string) error {
		return respond.RetryLater(fmt.Sprintf("%s are not known on this gateway: %s", r.GVR.GroupResource(), why))
	}
	entry, err := e.store.Get(wire.DeliveredKindsKey())
	if err != nil {
		return unknown("the cloud has not said that it sends them; an older cloudcore does not")
	}
	var kinds wire.DeliveredKinds
	if err := json.Unmarshal(entry.Object, &kinds); err != nil {
		return unknown("what the cloud says of its kinds is not readable")
	}
	k, ok := kinds.Find(r.GVR.Group, r.GVR.Resource)
	switch {
	case !ok:
		return unknown("the cloud does not know yet whether its Kubernetes serves them")
	case k.Version != "":
		return nil
	case k.Absence == wire.KindForbidden:
		return unknown("cloudcore may not read them; apply its roles (deploy/rbac)")
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", r.GVR.GroupResource(), "",
		"the Kubernetes of this gateway does not serve them in any version that the gateway knows", 0, false)
}
