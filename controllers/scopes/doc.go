// Package scopes decides which objects a gateway gets because a component there lists or watches them.
//
// A node says on a call what it wants and for whom (GrantController.HandleRequest). Each wish is judged: does the user live on that node, does
// Kubernetes let him list and watch the resource, is it one that can be followed. What is granted is kept in a registry that
// all replicas share, so that whoever owns the node next knows it, and package desired publishes it. The owner judges again
// from time to time, after each change of RBAC, and when a pod of the node has come or gone.
//
// Guarantees: nothing is granted without a review by Kubernetes of that very user; a user whose pod is not bound to the node is
// refused, whatever the node says; what could not be judged keeps its last verdict. A request never undoes a later one.
//
// It does not publish, and it knows neither NATS nor the node's own checks: the gateway judges each request of a pod again.
package scopes
