package toolchain

import (
	"context"
	"fmt"
	"os/exec"
)

// nftPackage is what Debian has of nft, which kube-proxy calls. It is needed to run, not to build, and by kube-proxy alone.
const nftPackage = "nftables"

// wantNft installs nft where it is missing and that is ours to do. Without it everything but kube-proxy works, so that it only says why not.
func (b *builder) wantNft(ctx context.Context) {
	if _, err := exec.LookPath("nft"); err == nil {
		return
	}
	if err := b.install(ctx, "kube-proxy", nftPackage); err != nil && ctx.Err() == nil {
		fmt.Fprintf(b.out, "kube-proxy: no program nft, and %v; gateways do without\n", err)
	}
}
