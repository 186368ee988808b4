package target

import "net/netip"

// Check exposes the check of a dialled address.
func Check(address string, allowed []netip.Prefix) error { return check(address, allowed) }
