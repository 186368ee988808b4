package gateway

import "net/netip"

// MaxFromOne and MaxToPort are for tests.
const (
	MaxFromOne = maxFromOne
	MaxToPort  = maxToPort
)

// RouteByClaims and RouteByEndpoints decide where a connection leads.
var (
	RouteByClaims    = routeByClaims
	RouteByEndpoints = routeByEndpoints
)

// Enter is a new crowd's.
func Enter() func(from netip.Addr, port uint16) (leave func(), ok bool) { return newCrowd().enter }
