package wire

// MaxPodDigests bounds the pods of a SameRequest, which is then about 100 KB. A node with more sends several.
const MaxPodDigests = 500

// SameRequest asks for which pods of the node Kubernetes holds the status that the node has, so that it need not report them.
type SameRequest struct {
	Pods []PodDigest `json:"pods"`
}

// PodDigest is a pod and the digest of its status (podstatus.Digest).
type PodDigest struct {
	Namespace string `json:"ns"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Digest    string `json:"digest"`
}

// SameReply lists the pods of a request that need no report, as indexes into it. It lists these and not the others, so that whatever
// is lost or not understood is reported.
type SameReply struct {
	Same []int `json:"same,omitempty"`
	// Error is why the cloud did not compare, such as a cloudcore that does not know the call.
	Error string `json:"error,omitempty"`
}
