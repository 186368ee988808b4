package identity

// TokenGroup is the group of bootstrap tokens that gateways may join with; others are kubeadm's.
const TokenGroup = "system:bootstrappers:frond"

// The annotations of such a token's Secret.
const (
	// AnnotationUses is the number of gateways that may join with the token; 0 is no limit, and without the annotation it is one.
	AnnotationUses = "frond.io/uses"
	// AnnotationNode is the only node that may join with the token; it then admits a node that was revoked or has another key.
	AnnotationNode = "frond.io/node"
	// AnnotationUsed lists the uses, "NODE=KEY", separated by commas; not for a token without a limit. Only cloudcore writes it.
	AnnotationUsed = "frond.io/used"
)
