package localapi

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// localVersionBase is added to the store's revision to make a resourceVersion of it. kube-apiserver counts the changes of its whole life, never
// as far as this, so nobody takes a version of the one for a version of the other: a client that is handed one of the cloud's, in
// the answer to a write, and uses it for a write after the gateway has the object, means that state and no other.
const localVersionBase = 1_000_000_000_000_000_000

// localVersion is a revision of the store, or of memory, as clients see it.
func localVersion(revision uint64) string {
	return strconv.FormatUint(localVersionBase+revision, 10)
}

// revisionOf undoes localVersion; 0 for "" and "0". One that is not of this gateway, as an older edgecore's and the cloud's are not, has expired.
func revisionOf(version string) (uint64, error) {
	if version == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(version, 10, 64)
	switch {
	case err != nil:
		return 0, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(version))
	case n == 0:
		return 0, nil
	case n < localVersionBase:
		return 0, apierrors.NewResourceExpired("the resource version is not one of this gateway: list again")
	}
	return n - localVersionBase, nil
}
