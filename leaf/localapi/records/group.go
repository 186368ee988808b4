// Package records keeps the local API's own records in the store, beside Kubernetes' objects: what the cloud does not have, and
// its answers to requests for tokens.
package records

// Group is the API group of this package's own records in the store, beside Kubernetes' objects.
const Group = "frond.io"
