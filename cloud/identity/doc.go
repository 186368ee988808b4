// Package identity decides who comes in: cloudcore's side of the hub's auth callout, of enrolment and of revocation.
//
// It owns the NodeIdentity objects, of which it keeps what it needs in memory, and the uses of bootstrap tokens. Any replica
// answers any question; one that has not read all records answers none, and the hub asks another. Letting a known node
// in costs no request to Kubernetes and no write anywhere, so it works while Kubernetes is away, with what was last read.
//
// It is longer than a room should be because its parts are one subject: each needs the same judgement of a record, standing.
//
// Callout answers the hub, Registrar the calls enrol and renew, Enforcer closes the links of who may not stay. How the
// hub's accounts are laid out, and what a node may do in its own, is streams' matter.
package identity
