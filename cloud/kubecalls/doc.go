// Package kubecalls performs the Kubernetes requests of nodes, and of programs with tokens there, and decides which of
// them are made.
//
// Server answers the calls kube and watch. A request is made as the node, so that the Node authorizer and
// NodeRestriction check it, or with the token of the request; cloudcore's own rights only create a Node that was checked
// as the node before. NamespaceGuard refuses what concerns protected namespaces. A watch is a sequence of calls, each of
// which Kubernetes authorizes anew.
package kubecalls
