// Package source reads objects from the cache in the form in which they are published, and tells whether the cache is behind
// what the stream holds.
package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// encodedLimit bounds the memory of cached encodings: room for the objects that change while thousands of nodes wait for them.
const encodedLimit = 32 << 20

// MaxServiceWaits is how often a pod is put off for ServicesHeld, about 3 s in all: a Service that can never be published must not
// keep a pod away.
const MaxServiceWaits = 8

// Source makes payloads of objects. Its methods may be called concurrently.
type Source struct {
	objects *objectcache.Cache
	fixed   map[kinds.ID]*kinds.Spec
	encoded *payload.Cache
	// referring are the fixed kinds whose objects reference other objects that a node needs.
	referring []kinds.ID
	// referrers are the optional kinds by whose objects alone nodes need those of another.
	referrers map[kinds.ID]kinds.ID
}

// New creates a Source. fixed are the kinds that are always in the cache.
func New(objects *objectcache.Cache, fixed map[kinds.ID]*kinds.Spec) *Source {
	s := &Source{objects: objects, fixed: fixed, encoded: payload.NewCache(encodedLimit), referrers: map[kinds.ID]kinds.ID{}}
	for id, k := range fixed {
		if k.References != nil {
			s.referring = append(s.referring, id)
		}
	}
	for _, o := range kinds.OptionalTable() {
		if o.Referrer != (kinds.ID{}) {
			s.referrers[o.ID] = o.Referrer
		}
	}
	return s
}

// Payload reads an object and makes its payload for a node. Objects that several nodes share are encoded once. The errors of
// objectcache.Cache.Get pass through.
func (s *Source) Payload(node string, key wire.Key) (*payload.Payload, error) {
	o, err := s.objects.Get(key)
	if err != nil {
		return nil, err
	}
	k, ok := s.objects.Kind(kinds.Of(key))
	home := ok && k.NodeOf != nil && k.NodeOf(o) == node
	if p, ok := s.encoded.Get(key, string(o.GetUID()), o.GetResourceVersion()); ok && !home {
		return &p, nil
	}
	p, err := payload.New(o, !home)
	if err == nil && ok && s.fixed[kinds.Of(key)] == nil {
		err = p.Encode()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key.Human(), err)
	}
	if p.Encoded() && !home {
		s.encoded.Put(key, p)
	}
	return &p, nil
}

// ServicesHeld reports whether the stream holds the Services of a pod's namespace. A container that starts without them lacks their
// addresses for as long as it runs.
func (s *Source) ServicesHeld(held *published.State, pod wire.Key) bool {
	o, err := s.objects.Get(pod)
	if p, ok := o.(*corev1.Pod); err != nil || !ok || !kinds.WantsServiceLinks(p) {
		return true
	}
	services, err := s.objects.ServicesIn(pod.Namespace)
	return err != nil || !slices.ContainsFunc(services, func(key wire.Key) bool { return !held.Holds(key) })
}

// Stale reports whether the caches are behind what the stream holds for a node: the cache of an object's kind, which has
// reached the resourceVersion heard, or of a kind that may reference the object. An optional kind only holds back the kind
// that is its alone: pods do not wait for a custom resource. A kind that is not Kubernetes' own is never stale.
func (s *Source) Stale(held *published.State, of kinds.ID, heard string) bool {
	if heard == "" {
		return false
	}
	if published.OlderVersion(heard, held.NewestVersion(of)) {
		return true
	}
	behind := func(k kinds.ID) bool { return published.OlderVersion(s.objects.Version(k), held.NewestVersion(k)) }
	if referrer, ok := s.referrers[of]; ok && behind(referrer) {
		return true
	}
	return slices.ContainsFunc(s.referring, behind)
}
