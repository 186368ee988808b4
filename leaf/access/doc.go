// Package access authenticates and authorizes clients of the local API, on the gateway alone.
//
// Tokens of service accounts are checked against the cluster's public keys, and permissions against its roles and bindings,
// both as the store holds them: the answers are the same with and without a link. Guarantees:
//   - A token identifies a user only if the cluster signed it and every object that it is bound to is in this node's store
//     with the same UID. A token of a pod on another node identifies no user here.
//   - An expired token is accepted only if it is the newest one that the gateway holds for a pod that lives here, and only
//     for a limited time: see Config.ExpiryGrace. It is accepted only if it could not be renewed, and at no other time.
//   - Roles that were never delivered are not "no roles": Authorize returns ErrUnknown then, and not a refusal.
//
// The role evaluation is upstream's own. It reads the store through two small methods and writes nothing to disk.
package access
