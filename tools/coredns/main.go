// Command coredns is upstream's CoreDNS with the few plugins that a gateway's pods need: all of them take minutes to build.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	dnsserver.Directives = []string{"errors", "health", "ready", "cache", "kubernetes"} // the order in which a query passes them
	coremain.Run()
}
