// Package scopes decides which objects a gateway gets because a component there lists or watches them.
//
// A node sends the scopes that it wants, and the users that want them, in a call (GrantController.HandleRequest). Each
// want is evaluated: does the user run on that node, does Kubernetes let the user list and watch the resource, can the
// resource be synced. The granted scopes are stored in a registry that all replicas share, so that the next owner of
// the node knows them, and package desired publishes them. The owner evaluates them again periodically, after each
// change of RBAC, and when a pod of the node was added or removed.
//
// Guarantees:
//   - No scope is granted without a review by Kubernetes of that very user, except on Services and EndpointSlices, which every node
//     may have.
//   - Otherwise a user whose pod is not bound to the node is refused, whatever the node says.
//   - A right that could not be evaluated keeps its last verdict.
//   - A request never undoes a later one.
//
// It does not publish, and it knows neither NATS nor the node's own checks: the gateway authorizes each request of a pod again.
package scopes
