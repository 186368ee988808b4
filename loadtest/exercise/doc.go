// Package exercise carries out a plan: it lets the gateways of a swarm join, makes and changes objects in Kubernetes for them, cuts links, and
// measures how long it takes until the gateways have what Kubernetes has.
//
// Its rates are open loops: an operation is due at a fixed time, whatever became of those before it, and its latency counts from then. At the
// end it compares each gateway's store with Kubernetes, object by object. It touches objects of its own namespace only, beside the Nodes,
// identities and the token of its run, and package cleanup deletes all of them.
package exercise
