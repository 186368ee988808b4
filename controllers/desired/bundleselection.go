package desired

import (
	"strings"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// A pod names the trust bundles of a projected volume by a signer and a label selector. The graph has a vertex between
// the pod and the bundles that is never published: the selection. An event of a bundle refreshes only the selections of its signer.

const (

	// signerIndex is the name of the cache's index of bundles by their signer.
	signerIndex = "frond.io/signer"
)

// isVirtual reports whether a key belongs to a vertex that is never published.
func isVirtual(key wire.Key) bool { return isSubject(key) || references.IsSelection(key) }

func signerOf(o client.Object) string { return nestedString(o, "spec", "signerName") }

// selectBundles returns the bundles that a selection matches now, sorted. It records the selection, so that later
// events of bundles find it. The caller holds mu.
func (e *Engine) selectBundles(selection wire.Key) []wire.Key {
	signer, text, _ := strings.Cut(selection.Name, " ") // a signer's name has no space
	if e.selections[signer] == nil {
		e.selections[signer] = map[wire.Key]struct{}{}
	}
	e.selections[signer][selection] = struct{}{}
	k, store := e.lookupKind(groupResource{references.CertificatesGroup, references.TrustBundlesResource})
	if store == nil {
		return nil // placeKind refreshes the selection once the kind is synced
	}
	selector, err := labels.Parse(text)
	if err != nil {
		e.log.Error("selection of trust bundles not readable", zap.String("selection", selection.Name), zap.Error(err))
		return nil
	}
	found, err := store.ByIndex(signerIndex, signer)
	if err != nil {
		e.log.Error("trust bundles of signer not listed", zap.String("signer", signer), zap.Error(err))
		return nil
	}
	var keys []wire.Key
	for _, object := range found {
		if o, ok := object.(client.Object); ok && selector.Matches(labels.Set(o.GetLabels())) {
			keys = append(keys, k.keyOf("", o.GetName()))
		}
	}
	sortKeys(keys)
	return keys
}

// refreshSelections updates the graph with the bundles that a signer's selections match, and drops the selections that
// nothing needs. The caller holds mu.
func (e *Engine) refreshSelections(signer string) {
	for selection := range e.selections[signer] {
		if e.graph.vertices[selection] == nil {
			delete(e.selections[signer], selection)
			continue
		}
		e.graph.refreshReferences(selection)
	}
	if len(e.selections[signer]) == 0 {
		delete(e.selections, signer)
	}
}

// bundleHandler is the event handler of trust bundles. An event concerns the bundle itself, and the selections of its
// signer before and after the change.
func (e *Engine) bundleHandler(k *kindSpec, handle func(any)) toolscache.ResourceEventHandler {
	reselect := func(objects ...any) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, object := range objects {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if o, ok := object.(client.Object); ok {
				e.refreshSelections(k.signer(o))
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handle(object); reselect(object) },
		UpdateFunc: func(old, object any) { handle(object); reselect(old, object) },
		DeleteFunc: func(object any) { handle(object); reselect(object) },
	}
}
