// Package source reads objects from the cache in the form in which they are published, and tells whether the cache is behind
// what the stream holds.
package source

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
	"github.com/frond-edge/frond/controllers/desired/topology"
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
	shares  *topology.Shares
	// cutting has one worker make a share that several nodes wait for.
	cutting singleflight.Group
	cuts    atomic.Uint64
	// referring are the fixed kinds whose objects reference other objects that a node needs.
	referring []kinds.ID
	// referrers are the optional kinds by whose objects alone nodes need those of another.
	referrers map[kinds.ID]kinds.ID
}

// New creates a Source. fixed are the kinds that are always in the cache.
func New(objects *objectcache.Cache, fixed map[kinds.ID]*kinds.Spec, shares *topology.Shares) *Source {
	s := &Source{objects: objects, fixed: fixed, shares: shares, encoded: payload.NewCache(encodedLimit), referrers: map[kinds.ID]kinds.ID{}}
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

// Payload reads an object and makes its payload for a node. held: the stream holds the object for the node. Endpoints of a Service that is not
// known are left out; if the stream holds the object, the error is topology.ErrNoService. Objects that several nodes share are encoded once. The errors of
// objectcache.Cache.Get and of topology.Shares.Of pass through. For a node that an object is withheld from there is no such object.
func (s *Source) Payload(node string, key wire.Key, held bool) (*payload.Payload, error) {
	o, err := s.objects.Get(key)
	if err != nil {
		return nil, err
	}
	k, ok := s.objects.Kind(kinds.Of(key))
	if ok && k.Withheld != nil && k.Withheld(o, node) {
		return nil, fmt.Errorf("withheld from %s: %w", node, objectcache.ErrNotFound)
	}
	home := ok && k.NodeOf != nil && k.NodeOf(o) == node
	share, err := s.shares.Of(node, key, o)
	if errors.Is(err, topology.ErrNoService) && !held {
		share, err = topology.NoEndpoints(), nil
	}
	if err != nil {
		return nil, err
	}
	if !share.Whole() {
		return s.encodeShare(key, share, o)
	}
	if p, ok := s.encoded.Get(key, "", string(o.GetUID()), o.GetResourceVersion()); ok && !home {
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
		s.encoded.Put(key, "", p)
	}
	return &p, nil
}

// encodeShare makes the payload of a share of an object, once for all nodes with that share.
func (s *Source) encodeShare(key wire.Key, share topology.Share, o client.Object) (*payload.Payload, error) {
	uid, version := string(o.GetUID()), o.GetResourceVersion()
	if p, ok := s.encoded.Get(key, share.Class, uid, version); ok {
		return &p, nil
	}
	made, err, _ := s.cutting.Do(strings.Join([]string{key.String(), uid, version, share.Class}, " "), func() (any, error) {
		if p, ok := s.encoded.Get(key, share.Class, uid, version); ok {
			return p, nil
		}
		part, err := share.Cut(o)
		if err != nil {
			return payload.Payload{}, err
		}
		p, err := payload.OfShare(part)
		if err == nil {
			s.encoded.Put(key, share.Class, p)
			s.cuts.Add(1)
		}
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key.Human(), err)
	}
	p := made.(payload.Payload)
	return &p, nil
}

// Cuts returns how many shares were made.
func (s *Source) Cuts() uint64 { return s.cuts.Load() }

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
