// Package identity owns the NodeIdentity objects: the records of the gateways' keys, enrolment by a bootstrap token, and
// renewal of keys.
//
// Records keeps the needed fields of all NodeIdentities in memory; KeyStatus evaluates a key by a record. Registrar
// answers the calls enrol and renew: it reads what it decides on from Kubernetes at that moment and writes under the
// version that it read, so any replica may answer any request. KeyConfirmer ends the validity of previous keys.
//
// The packages below decide with these records: callout admits links for the hub, links closes those that may not stay.
package identity
