package desired

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// Some kinds that a kubelet requests are not in every Kubernetes: they came with a later version, or a feature gate
// disables them. Each is probed by a request for the resource itself, so that a 404 is the apiserver's statement that
// it serves no such kind. While it is served, a kindInformer keeps it synced. What the stream holds of a kind that is
// not synced stays as it is: nothing about it is known, and "not known" is never "absent". wire.DeliveredKinds tells
// nodes which of these kinds they get.

const (
	// probeTimeout bounds one probe: a list of one object.
	probeTimeout = 10 * time.Second
	// probeMisses is how many probes in a row must find a synced kind missing before it is dropped: while several
	// apiservers are upgraded one after the other, their answers differ.
	probeMisses = 5
	// optionalWait is how long the start waits for the optional kinds, which should take as long as the others. A kind
	// that is not synced by then begins later.
	optionalWait = 30 * time.Second
)

// optionalKind is a kind that the apiserver may lack. Guarded by Engine.mu, except for the fields that never change.
type optionalKind struct {
	id groupResource
	// kind is its name in the API. versions are those that Frond knows, the preferred first; their fields are the same
	// as far as Frond or a kubelet reads them.
	kind     string
	versions []string
	// template is the kindSpec of its kindInformer, without the version.
	template kindSpec

	// version is the one that is served, "" for none; probed says that a probe has given an answer. absence is the
	// reason for none.
	version string
	probed  bool
	absence wire.KindAbsence
	misses  int
	// synced: its objects are in the cache, and the graph has seen them.
	synced bool
}

// optionalKinds returns the kinds that reach nodes without a scope where the apiserver serves them.
func optionalKinds() map[groupResource]*optionalKind {
	table := map[groupResource]*optionalKind{}
	add := func(group, resource, name string, template kindSpec, versions ...string) {
		template.resource = resource
		id := groupResource{group, resource}
		table[id] = &optionalKind{id: id, kind: name, versions: versions, template: template}
	}
	ofNode := func(o client.Object) string { return nestedString(o, "spec", "nodeName") }
	add(references.CertificatesGroup, references.TrustBundlesResource, "ClusterTrustBundle", kindSpec{signer: signerOf}, "v1", "v1beta1", "v1alpha1")
	// A kubelet watches the requests that it makes, selected by its Node; the signer's answer is in their status.
	add(references.CertificatesGroup, "podcertificaterequests", "PodCertificateRequest", kindSpec{nodeOf: ofNode}, "v1")
	add(references.ResourceGroup, references.ClaimsResource, "ResourceClaim", kindSpec{}, "v1")
	// A driver of a node's devices lists and watches the slices that it publishes, selected by its Node.
	add(references.ResourceGroup, "resourceslices", "ResourceSlice", kindSpec{nodeOf: ofNode}, "v1")
	return table
}

// nestedString reads a string field of an unstructured object; "" if there is none.
func nestedString(o client.Object, path ...string) string {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	value, _, _ := unstructured.NestedString(u.Object, path...)
	return value
}

// dynamicKind returns the kindSpec of a kind that is synced without being in kindTable: an optional one, or one for
// scopes alone. The caller holds mu.
func (e *Engine) dynamicKind(gvk schema.GroupVersionKind, resource string) *kindSpec {
	o := e.optional[groupResource{gvk.Group, resource}]
	if o == nil {
		return &kindSpec{gvk: gvk, resource: resource, scopedOnly: true}
	}
	k := o.template
	if k.gvk = gvk; o.version != "" {
		k.gvk.Version = o.version
	}
	return &k
}

// kindNotSynced reports whether an object's kind is an optional one that is not synced now: then nothing about it is
// decided. The caller holds mu.
func (e *Engine) kindNotSynced(key wire.Key) bool {
	if e.optional[kindOf(key)] == nil {
		return false
	}
	_, store := e.lookupKind(kindOf(key))
	return store == nil
}

// awaitOptional waits until each optional kind is synced or known to be absent.
func (e *Engine) awaitOptional(ctx context.Context) {
	if e.cfg.Probe == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, optionalWait)
	defer cancel()
	for {
		e.mu.Lock()
		changed, waiting := e.optionalChanged, []string{}
		for id, o := range e.optional {
			if !o.probed || o.version != "" && !o.synced {
				waiting = append(waiting, id.resource)
			}
		}
		e.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			e.log.Warn("kinds are not followed yet, nodes keep what they have of them", zap.Strings("resources", waiting))
			return
		}
	}
}

// runProbes probes which optional kinds are served, until ctx ends.
func (e *Engine) runProbes(ctx context.Context) error {
	if e.cfg.Probe == nil {
		return nil
	}
	for {
		all := true
		for _, o := range e.optional {
			all = e.probeKind(ctx, o) && all
		}
		pause := e.cfg.ProbeEvery
		if !all {
			pause = min(pause, informerRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// probeKind probes one kind, first in the version that is synced, and reports whether the answer was conclusive.
func (e *Engine) probeKind(ctx context.Context, o *optionalKind) bool {
	e.mu.Lock()
	versions := slices.Clone(o.versions)
	if current := o.version; current != "" {
		versions = append([]string{current}, slices.DeleteFunc(versions, func(v string) bool { return v == current })...)
	}
	e.mu.Unlock()
	for _, version := range versions {
		err := e.probeVersion(ctx, schema.GroupVersionResource{Group: o.id.group, Version: version, Resource: o.id.resource})
		switch {
		case err == nil:
			e.recordProbe(o, version, "")
			return true
		case apierrors.IsForbidden(err):
			e.recordProbe(o, "", wire.KindForbidden)
			return true
		case !apierrors.IsNotFound(err):
			if ctx.Err() == nil {
				e.log.Warn("not known whether a kind is served, trying again", zap.String("resource", o.id.resource), zap.Error(err))
			}
			return false
		}
	}
	e.recordProbe(o, "", wire.KindNotServed)
	return true
}

func (e *Engine) probeVersion(ctx context.Context, resource schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return e.cfg.Probe(ctx, resource)
}

// recordProbe records the result of a probe: the version in which a kind is served, or the reason for its absence.
func (e *Engine) recordProbe(o *optionalKind, version string, absence wire.KindAbsence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if version == "" && o.version != "" {
		if o.misses++; o.misses < probeMisses {
			return
		}
	}
	o.misses = 0
	if o.probed && o.version == version && o.absence == absence {
		return
	}
	before := o.version
	o.probed, o.version, o.absence = true, version, absence
	switch {
	case version == "" && absence == wire.KindForbidden:
		e.log.Warn("cloudcore may not read a kind, nodes get none of it: apply deploy/rbac", zap.String("resource", o.id.resource))
	case version == "":
		e.log.Info("kind is not served, nodes get none of it", zap.String("resource", o.id.resource))
	}
	switch {
	case before == "" && version != "":
		e.retainKind(o.id, schema.GroupVersionKind{Group: o.id.group, Version: version, Kind: o.kind})
	case before != "" && version == "":
		e.releaseKind(o.id)
	case before != version:
		e.releaseKind(o.id)
		e.retainKind(o.id, schema.GroupVersionKind{Group: o.id.group, Version: version, Kind: o.kind})
	}
	e.notifyOptional()
}

// placeKind adds the nodes' objects of a newly synced kind to the graph, before anything is decided about them, and
// enqueues what the stream holds of the kind. The caller holds mu.
func (e *Engine) placeKind(id groupResource, k *kindSpec, store toolscache.Indexer) {
	o := e.optional[id]
	if o == nil {
		return
	}
	for _, s := range e.nodes {
		e.placeNodeObjects(k, store, s)
	}
	if k.signer != nil {
		for signer := range e.selections {
			e.refreshSelections(signer)
		}
	}
	for _, s := range e.nodes { // objects that were deleted while the kind was not synced are found in what the stream holds
		for _, key := range s.publishedKeys(wire.Scope{Group: id.group, Resource: id.resource}) {
			e.enqueueKey(s, key)
		}
	}
}

// recordSynced records that an optional kind is synced, or no longer. The caller holds mu.
func (e *Engine) recordSynced(id groupResource, followed bool) {
	o := e.optional[id]
	if o == nil || o.synced == followed {
		return
	}
	o.synced = followed
	e.notifyOptional()
}

// notifyOptional wakes the waiters for optional kinds and updates the object that tells nodes which kinds they get. The
// caller holds mu.
func (e *Engine) notifyOptional() {
	close(e.optionalChanged)
	e.optionalChanged = make(chan struct{})
	var kinds []wire.DeliveredKind
	for id, o := range e.optional {
		if o.probed && (o.version == "" || o.synced) {
			kinds = append(kinds, wire.DeliveredKind{Group: id.group, Resource: id.resource, Version: o.version, Absence: o.absence})
		}
	}
	slices.SortFunc(kinds, func(a, b wire.DeliveredKind) int {
		return wire.Key{Group: a.Group, Resource: a.Resource}.Compare(wire.Key{Group: b.Group, Resource: b.Resource})
	})
	object, err := json.Marshal(wire.NewDeliveredKinds(kinds))
	if err != nil {
		e.log.Error("delivered kinds not encoded", zap.Error(err))
		return
	}
	e.setStatic(wire.DeliveredKindsKey(), object)
}

// indexersOf returns the indexes that the cache of a kind needs.
func indexersOf(k *kindSpec) toolscache.Indexers {
	indexers := toolscache.Indexers{}
	if k.nodeOf != nil {
		indexers[nodeIndex] = func(o any) ([]string, error) { return []string{k.nodeOf(o.(client.Object))}, nil }
	}
	if k.subjects != nil {
		indexers[subjectIndex] = func(o any) ([]string, error) { return k.subjects(o.(client.Object)), nil }
	}
	if k.signer != nil {
		indexers[signerIndex] = func(o any) ([]string, error) { return []string{k.signer(o.(client.Object))}, nil }
	}
	return indexers
}

// addIndexes adds the missing indexes of a kind to its informer.
func addIndexes(informer toolscache.SharedIndexInformer, k *kindSpec) error {
	indexers := indexersOf(k)
	for name := range informer.GetIndexer().GetIndexers() {
		delete(indexers, name) // another engine of this process has added it
	}
	if err := informer.AddIndexers(indexers); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	return nil
}
