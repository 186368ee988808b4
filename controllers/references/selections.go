package references

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Names of kinds that not every Kubernetes serves.
const (
	CertificatesGroup    = "certificates.k8s.io"
	TrustBundlesResource = "clustertrustbundles"
	ResourceGroup        = "resource.k8s.io"
	ClaimsResource       = "resourceclaims"
)

// selectionsResource is the resource of a selection's vertex.
const selectionsResource = "trustbundleselections"

// selectionKey returns the key of a projection's selection. It returns false for a selector that is invalid or selects
// nothing, which a kubelet refuses.
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

// IsSelection reports whether a key is that of a selection of trust bundles: "SIGNER SELECTOR" names what is no object itself.
func IsSelection(key wire.Key) bool {
	return key.Group == "frond.io" && key.Resource == selectionsResource
}
