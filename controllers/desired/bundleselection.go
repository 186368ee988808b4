package desired

import (
	"strings"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// A pod names the trust bundles of a projected volume by a signer and a label selector. Between the pod and the bundles stands a
// vertex of the graph that is never published: the selection. An event of a bundle asks for the selections of its signer alone.

const (
	certificatesGroup    = "certificates.k8s.io"
	trustBundlesResource = "clustertrustbundles"
	resourceGroup        = "resource.k8s.io"
	claimsResource       = "resourceclaims"

	// selectionsResource is the resource of such a vertex.
	selectionsResource = "trustbundleselections"
	// signerIndex is the name of the cache's index of bundles by their signer.
	signerIndex = "frond.io/signer"
)

// selectionKey names what a projection selects; false for a selector that selects nothing or is invalid, which a kubelet refuses.
func selectionKey(signer string, selector *metav1.LabelSelector) (wire.Key, bool) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || signer == "" {
		return wire.Key{}, false
	}
	if _, selectable := parsed.Requirements(); !selectable {
		return wire.Key{}, false
	}
	return wire.Key{Group: "frond.io", Resource: selectionsResource, Name: signer + " " + parsed.String()}, true
}

func isSelection(key wire.Key) bool {
	return key.Group == "frond.io" && key.Resource == selectionsResource
}

// isVirtual reports whether a key is of a vertex that is never published.
func isVirtual(key wire.Key) bool { return isSubject(key) || isSelection(key) }

func signerOf(o client.Object) string { return nestedString(o, "spec", "signerName") }

// selectBundles returns the bundles that a selection matches now, sorted. It remembers the selection, so that events of bundles find it. The
// caller holds mu.
func (e *Engine) selectBundles(selection wire.Key) []wire.Key {
	signer, text, _ := strings.Cut(selection.Name, " ") // a signer's name has no space
	if e.selections[signer] == nil {
		e.selections[signer] = map[wire.Key]struct{}{}
	}
	e.selections[signer][selection] = struct{}{}
	k, store := e.lookupKind(groupResource{certificatesGroup, trustBundlesResource})
	if store == nil {
		return nil // when the kind is followed, placeKind comes
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

// refreshSelections brings the graph up to date with what the selections of a signer match, and forgets those that nothing needs. The
// caller holds mu.
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

// bundleHandler is the handler of trust bundles: an event concerns the bundle itself, and the selections of its signer now and before.
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
