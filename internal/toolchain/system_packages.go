package toolchain

import (
	"context"
	"fmt"
	"os/exec"
)

// systemPackage is a program of the machine that is needed at run time, not to build.
type systemPackage struct {
	program, debian string
	without         string // what does not work without it
}

// nodePackages are the programs that gateways with containers call.
func nodePackages() []systemPackage {
	return []systemPackage{{"nft", "nftables", "kube-proxy"}, {"ip", "iproute2", "networks of gateways"}}
}

// machinePackages are the programs that a test of gateways as separate machines needs.
func machinePackages() []systemPackage {
	return []systemPackage{{"/lib/systemd/systemd", "systemd", "gateways that are machines"}}
}

// installWanted installs missing programs where that is permitted. Most features work without them, so a failure is only printed.
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
