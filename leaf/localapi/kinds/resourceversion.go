package kinds

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// LocalVersionBase is added to the store's revision to get a resourceVersion. kube-apiserver counts its changes and never
// reaches this number, so the two ranges of versions do not overlap. A client may get a version of the cloud in the answer
// to a write and use it for a write after the gateway has the object: it means that state and no other.
const LocalVersionBase = 1_000_000_000_000_000_000

// LocalVersion returns a revision of the store, or of memory, as clients see it.
func LocalVersion(revision uint64) string {
	return strconv.FormatUint(LocalVersionBase+revision, 10)
}

// RevisionOf reverses localVersion; 0 for "" and "0". A version of another origin (an older edgecore, the cloud) has expired.
func RevisionOf(version string) (uint64, error) {
	if version == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(version, 10, 64)
	switch {
	case err != nil:
		return 0, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(version))
	case n == 0:
		return 0, nil
	case n < LocalVersionBase:
		return 0, apierrors.NewResourceExpired("the resource version is not one of this gateway: list again")
	}
	return n - LocalVersionBase, nil
}
