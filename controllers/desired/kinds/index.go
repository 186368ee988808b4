package kinds

import (
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/podcache"
)

// The names of the cache's indexes: of objects by the node they belong to, of bindings by their subjects, of trust
// bundles by their signer, and of EndpointSlices by their Service.
const (
	NodeIndex    = "frond.io/home"
	SubjectIndex = "frond.io/subject"
	SignerIndex  = "frond.io/signer"
	ServiceIndex = "frond.io/service"
)

// AddIndexes adds the missing indexes of the kind to its informer.
func (k *Spec) AddIndexes(informer toolscache.SharedIndexInformer) error {
	return controllers.AddIndexers(informer, k.Indexers()) // another engine of this process may have added them
}

// Indexers returns the indexes that the cache of the kind needs.
func (k *Spec) Indexers() toolscache.Indexers {
	indexers := toolscache.Indexers{}
	if k.NodeOf != nil {
		indexers[NodeIndex] = func(o any) ([]string, error) {
			if pod, ok := podcache.Of(o); ok {
				return []string{pod.Node()}, nil
			}
			return []string{k.NodeOf(o.(client.Object))}, nil
		}
	}
	if k.Subjects != nil {
		indexers[SubjectIndex] = func(o any) ([]string, error) { return k.Subjects(o.(client.Object)), nil }
	}
	if k.Service != nil {
		indexers[ServiceIndex] = func(o any) ([]string, error) { return []string{k.Service(o.(client.Object))}, nil }
	}
	if k.Signer != nil {
		indexers[SignerIndex] = func(o any) ([]string, error) { return []string{k.Signer(o.(client.Object))}, nil }
	}
	return indexers
}
