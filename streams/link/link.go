// Package link knows whether the hub is reachable, and holds a copied gateway away from it (FencedLink).
package link

// Link reports whether the hub is reachable.
type Link interface {
	// State returns the current state and a channel that closes when it changes.
	State() (up bool, changed <-chan struct{})
}
