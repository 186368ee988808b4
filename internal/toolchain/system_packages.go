package toolchain

import (
	"context"
	"fmt"
	"os/exec"
)

// systemPackage is a program of the machine that is needed to run, not to build.
type systemPackage struct {
	program, debian string
	without         string // what is not to be had without it
}

// nodePackages is what gateways with containers call.
func nodePackages() []systemPackage {
	return []systemPackage{{"nft", "nftables", "kube-proxy"}, {"ip", "iproute2", "networks of gateways"}}
}

// machinePackages is what a test takes that has gateways as machines of their own.
func machinePackages() []systemPackage {
	return []systemPackage{{"/lib/systemd/systemd", "systemd", "gateways that are machines"}}
}

// installWanted installs what is missing where that is ours to do. Most works without, so that it only says why not.
func (b *builder) installWanted(ctx context.Context, all []systemPackage) {
	for _, w := range all {
		if _, err := exec.LookPath(w.program); err == nil {
			continue
		}
		if err := b.installPackages(ctx, w.without, w.debian); err != nil && ctx.Err() == nil {
			fmt.Fprintf(b.out, "%s: no program %s, and %v; tests and clusters do without\n", w.without, w.program, err)
		}
	}
}
