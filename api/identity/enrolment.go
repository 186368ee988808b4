package identity

import "time"

// Credential is what a gateway shows the hub beside its signature of the server's nonce; see EncodeCredential. Without Token, Key must be
// recorded for Node.
type Credential struct {
	Node string `json:"node"`
	// Key is the public nkey that has signed the nonce.
	Key string `json:"key"`
	// Token is a bootstrap token, "id.secret", of a gateway that is not recorded yet.
	Token string `json:"token,omitempty"`
}

// The verbs of a gateway's identity. A link without a valid key is in the lobby: an account in which it reaches these two, on
// call.cloud.<key>.<verb> with replies to _INBOX.<key>.>, and nothing else. A key cannot be a node's name: it has capitals.
const (
	VerbEnrol = "enrol" // EnrolRequest, Enrolment; in the lobby only
	VerbRenew = "renew" // RenewRequest, Enrolment; as a node, or with an expired key in the lobby
)

// EnrolRequest asks to be recorded. Who sends it twice gets the same answer, and uses a token once.
type EnrolRequest struct {
	Node  string `json:"node"`
	Key   string `json:"key"`
	Token string `json:"token"`
	// Signature is that of Proof(VerbEnrol, Node, Key) by Key.
	Signature []byte `json:"signature"`
}

// RenewRequest asks for more time, for the key of the link or for another one in its place.
type RenewRequest struct {
	Node string `json:"node"`
	// Key is the key from now on: a new one of the gateway, or the one it has.
	Key string `json:"key"`
	// Current is the key that is recorded now; its signature is Approval, of Proof(VerbRenew, Node, Key).
	Current  string `json:"current"`
	Approval []byte `json:"approval"`
	// Signature is that of Proof(VerbRenew, Node, Key) by Key.
	Signature []byte `json:"signature"`
	// Nonce is the hub's, of the link that asks, and Link is Key's signature of it: what Key would have shown there. The link then
	// is Key's from now on, and needs no new one. Both may be empty.
	Nonce string `json:"nonce,omitempty"`
	Link  []byte `json:"link,omitempty"`
}

// Enrolment is the answer to both: what a gateway needs to know beside its key. A refusal has Reason alone.
type Enrolment struct {
	// Reason says why not, for people, and what to do; "" is a success.
	Reason string `json:"reason,omitempty"`
	// Expires is until when the key is enough; Now is the cloud's time.
	Expires time.Time `json:"expires,omitzero"`
	Now     time.Time `json:"now,omitzero"`
	// Carried says that the link that asked is known as the key's, as if it had been made with it.
	Carried bool `json:"carried,omitempty"`
	// HubCA are the certificates (PEM) that sign the hub's, more than one while they change.
	HubCA string `json:"hubCA,omitempty"`
	// HubURLs are the hub's leaf listeners; empty: those that the gateway has.
	HubURLs []string `json:"hubURLs,omitempty"`
	// ClusterCA are the certificates (PEM) of the Kubernetes cluster: of who may call the kubelet, and of its serving certificate.
	ClusterCA string `json:"clusterCA,omitempty"`
}

// Proof returns the bytes that a gateway signs to prove that it holds a key.
func Proof(verb, node, key string) []byte {
	return []byte("frond.io " + verb + " " + node + " " + key)
}
