package identity

// TokenGroup is the group of bootstrap tokens that gateways may join with; others are kubeadm's.
const TokenGroup = "system:bootstrappers:frond"
