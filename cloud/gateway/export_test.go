package gateway

import "net/netip"

// MaxPerSource and MaxPerPort are exported for tests.
const (
	MaxPerSource = maxPerSource
	MaxPerPort   = maxPerPort
)

// RouteByClaims and RouteByEndpoints are exported for tests.
var (
	RouteByClaims    = routeByClaims
	RouteByEndpoints = routeByEndpoints
)

// AcquireConn returns acquire of a new connLimiter.
func AcquireConn() func(from netip.Addr, port uint16) (leave func(), ok bool) {
	return newConnLimiter().acquire
}
