// Package needs finds out which objects each node needs, by what the objects in the cache reference now.
package needs

import (
	"strings"

	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/graph"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/references"
)

// Needs is the graph of what nodes need, with references read from the cache. Like the graph it has no lock of its own.
type Needs[N comparable] struct {
	*graph.Graph[N]
	objects   *objectcache.Cache
	protected controllers.ProtectedNamespaces
	log       *zap.Logger
	// selections are the trust bundle selections that pods of nodes make, by signer.
	selections map[string]map[wire.Key]struct{}
}

// New creates an empty Needs. Objects of protected namespaces need nothing. changed is called for each object that a node
// begins or ceases to need.
func New[N comparable](
	objects *objectcache.Cache, protected controllers.ProtectedNamespaces, changed func(N, wire.Key), log *zap.Logger,
) *Needs[N] {
	d := &Needs[N]{objects: objects, protected: protected, log: log, selections: map[string]map[wire.Key]struct{}{}}
	d.Graph = graph.New(d.expandReferences, changed)
	return d
}

// PlaceOfNode adds the objects of one kind that belong to a node, known by its name.
func (d *Needs[N]) PlaceOfNode(k objectcache.Kind, name string, node N) {
	found, err := k.OfNode(name)
	if err != nil {
		d.log.Error("objects of node not listed", zap.String("node", name), zap.String("resource", k.Resource), zap.Error(err))
	}
	for _, key := range found {
		d.Place(key, node)
	}
}

// RefreshSelections refreshes all selections of trust bundles, after their kind was synced.
func (d *Needs[N]) RefreshSelections() {
	for signer := range d.selections {
		d.refreshSelections(signer)
	}
}

// RefreshBetween refreshes the subjects that a binding names, the selections of a trust bundle's signer, or what the pods of a
// Service's namespace need.
func (d *Needs[N]) RefreshBetween(k *kinds.Spec, o client.Object) {
	if k.Signer != nil {
		d.refreshSelections(k.Signer(o))
	}
	if k.ID() == kinds.Services() {
		d.Refresh(kinds.ServicesOf(o.GetNamespace()))
	}
	if k.Subjects != nil {
		for _, subject := range k.Subjects(o) {
			d.Refresh(kinds.SubjectKey(subject))
		}
	}
}

// expandReferences returns what an object needs now, for the graph.
func (d *Needs[N]) expandReferences(key wire.Key) []wire.Key {
	var needed []wire.Key
	var err error
	switch {
	case kinds.IsSubject(key):
		needed, err = d.objects.Bindings(key.Name, func(o client.Object) bool { return !d.protected.Contains(o.GetNamespace()) })
	case kinds.IsServices(key):
		needed, err = d.objects.ServicesIn(key.Namespace)
	case d.protected.Covers(key): // the object is withheld, and so is everything that only it refers to
	case references.IsSelection(key):
		d.recordSelection(key)
		needed, err = d.objects.Bundles(key)
	default:
		k, synced := d.objects.Kind(kinds.Of(key))
		if !synced || k.References == nil {
			return nil
		}
		if o, err := d.objects.Get(key); err == nil { // an object that does not exist needs nothing; its event will follow
			return k.References(o)
		}
	}
	if err != nil {
		d.log.Error("references not resolved", zap.String("object", key.Human()), zap.Error(err))
	}
	return needed
}

// recordSelection records a selection of trust bundles, so that later events of bundles find it.
func (d *Needs[N]) recordSelection(selection wire.Key) {
	signer, _, _ := strings.Cut(selection.Name, " ") // a signer's name has no space
	if d.selections[signer] == nil {
		d.selections[signer] = map[wire.Key]struct{}{}
	}
	d.selections[signer][selection] = struct{}{}
}

// refreshSelections updates the graph with the bundles that a signer's selections match, and drops the selections that
// nothing needs.
func (d *Needs[N]) refreshSelections(signer string) {
	for selection := range d.selections[signer] {
		if !d.Has(selection) {
			delete(d.selections[signer], selection)
			continue
		}
		d.Refresh(selection)
	}
	if len(d.selections[signer]) == 0 {
		delete(d.selections, signer)
	}
}
