package kinds

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// A pod names the trust bundles of a projected volume by a signer and a label selector. The graph has a vertex between
// the pod and the bundles that is never published: the selection. An event of a bundle refreshes only the selections of its signer.

// TrustBundles is the kind of trust bundles.
func TrustBundles() ID { return ID{references.CertificatesGroup, references.TrustBundlesResource} }

// IsVirtual reports whether a key belongs to a vertex that is never published.
func IsVirtual(key wire.Key) bool {
	return IsSubject(key) || IsServices(key) || references.IsSelection(key)
}

func signerOf(o client.Object) string { return nestedString(o, "spec", "signerName") }
