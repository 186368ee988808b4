package toolchain

import (
	"context"
	"fmt"
	"os/exec"
)

// wanted is a program of the machine that is needed to run, not to build.
type wanted struct {
	program, debian string
	without         string // what is not to be had without it
}

// nodeWants is what gateways with containers call.
func nodeWants() []wanted {
	return []wanted{{"nft", "nftables", "kube-proxy"}, {"ip", "iproute2", "networks of gateways"}}
}

// machineWants is what a test takes that has gateways as machines of their own.
func machineWants() []wanted {
	return []wanted{{"/lib/systemd/systemd", "systemd", "gateways that are machines"}}
}

// want installs what is missing where that is ours to do. Most works without, so that it only says why not.
func (b *builder) want(ctx context.Context, all []wanted) {
	for _, w := range all {
		if _, err := exec.LookPath(w.program); err == nil {
			continue
		}
		if err := b.install(ctx, w.without, w.debian); err != nil && ctx.Err() == nil {
			fmt.Fprintf(b.out, "%s: no program %s, and %v; tests and clusters do without\n", w.without, w.program, err)
		}
	}
}
