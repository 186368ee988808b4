package identity

// TokenGroup is the group of bootstrap tokens that gateways may join with; others are kubeadm's.
const TokenGroup = "system:bootstrappers:frond"

// The annotations of such a token's Secret.
const (
	// AnnotationUses is how many gateways may join with it, a number; 0 is any number, and without it one may.
	AnnotationUses = "frond.io/uses"
	// AnnotationNode is the only node that it is for; it then lets in a node that was revoked or has another key.
	AnnotationNode = "frond.io/node"
	// AnnotationUsed are the uses, "NODE=KEY", separated by commas; none of a token for any number. cloudcore alone writes it.
	AnnotationUsed = "frond.io/used"
)
