// Package access decides, on the gateway alone, who asks the local API and what they may do.
//
// Tokens of service accounts are checked against the cluster's public keys, and permissions against its roles and
// bindings, both as the store holds them: the answers are the same with and without a link. What it guarantees:
//   - A token is somebody only if it is signed by the cluster and all that it is bound to is in this node's store with the
//     same UID. A token of a pod elsewhere is nobody's here.
//   - An expired token is accepted only if it is the very one that the gateway holds as the newest of a pod that lives
//     here, and only for a while: see Config.ExpiryGrace. It is so when nobody could renew it, and at no other time.
//   - Roles that were never delivered are not "no roles": Authorize returns ErrUnknown then, and not a refusal.
//
// The role evaluation is upstream's own. It reads the store through two small methods and keeps nothing on disk.
package access
