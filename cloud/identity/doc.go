// Package identity decides which gateways are admitted: it is cloudcore's side of the hub's auth callout, of enrolment
// and of revocation.
//
// It owns the NodeIdentity objects, of which it keeps the needed fields in memory, and the uses of bootstrap tokens.
// Any replica answers any request; one that has not read all records answers none, and the hub asks another. Admitting
// a known node costs no request to Kubernetes and no write anywhere, so it works while Kubernetes is unavailable, with
// what was last read.
//
// The package is longer than usual because its parts are one subject: each needs the same evaluation of a record, keyStatus.
//
// Callout answers the hub, Registrar the calls enrol and renew, Enforcer closes the links that may not stay. The layout
// of the hub's accounts, and a node's permissions in its own, belong to package streams.
package identity
