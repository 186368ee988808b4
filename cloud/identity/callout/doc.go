// Package callout is cloudcore's answer to the hub's auth callout: it decides for each new link whether it is placed in
// its node's cell, in the lobby or refused.
//
// Any replica answers any request; one that has not read all records answers none, and the hub asks another. Admitting
// a known node costs no request to Kubernetes and no write anywhere, so it works while Kubernetes is unavailable, with
// what was last read. The layout of the hub's accounts, and a node's permissions in its own, belong to package streams.
package callout
