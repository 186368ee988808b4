package gateway

import "net/netip"

// MaxPerSource and MaxPerPort are for tests.
const (
	MaxPerSource = maxPerSource
	MaxPerPort   = maxPerPort
)

// RouteByClaims and RouteByEndpoints decide where a connection leads.
var (
	RouteByClaims    = routeByClaims
	RouteByEndpoints = routeByEndpoints
)

// AcquireConn is a new crowd's.
func AcquireConn() func(from netip.Addr, port uint16) (leave func(), ok bool) {
	return newConnLimiter().acquire
}
