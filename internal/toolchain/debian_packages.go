package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/frond-edge/frond/internal/toolchain/cache"
)

// runcPackages are the Debian packages to compile runc. It needs none of them to run.
const runcPackages = "gcc libc6-dev libseccomp-dev pkg-config"

// A systemPackage has a program of the machine that is needed at run time, not to build.
type systemPackage struct {
	program, debian string
	without         string // what does not work without it
}

// nodePackages are the programs that gateways with containers call.
func nodePackages() []systemPackage {
	return []systemPackage{{"nft", "nftables", "kube-proxy"}, {"ip", "iproute2", "networks of gateways"}, {"mosquitto", "mosquitto", "gateways with another MQTT broker"}}
}

// machinePackages are the programs that a test of gateways as separate machines needs.
func machinePackages() []systemPackage {
	return []systemPackage{{"/lib/systemd/systemd", "systemd", "gateways that are machines"}}
}

// A packageInstaller runs apt-get for what is missing on this machine, and writes to out what it does.
type packageInstaller struct{ out io.Writer }

// installWanted installs missing programs where that is permitted. Most features work without them, so a failure is only printed.
func (i packageInstaller) installWanted(ctx context.Context, all []systemPackage) {
	for _, w := range all {
		if _, err := exec.LookPath(w.program); err == nil {
			continue
		}
		if err := i.install(ctx, w.without, w.debian); err != nil && ctx.Err() == nil {
			fmt.Fprintf(i.out, "%s: no program %s, and %v; tests and clusters do without\n", w.without, w.program, err)
		}
	}
}

// ensureCCompiler makes sure that runc can be compiled. As root on Debian it installs missing packages; otherwise its error lists them.
func (i packageInstaller) ensureCCompiler(ctx context.Context) error {
	missing := missingForC(ctx)
	if missing == "" {
		return nil
	}
	fault := i.install(ctx, "runc", runcPackages)
	if missing = missingForC(ctx); missing == "" {
		return nil
	}
	if fault == nil {
		fault = errors.New("installed, but still not found")
	}
	return fmt.Errorf("build runc: %s, and %w\n\tWhat to do: apt-get install %s (needed once, to compile)",
		missing, fault, runcPackages)
}

// missingForC describes what is missing to compile runc, "" for nothing.
func missingForC(ctx context.Context) string {
	compiler := false
	for _, name := range []string{os.Getenv("CC"), "gcc", "cc"} {
		if _, err := exec.LookPath(name); name != "" && err == nil {
			compiler = true
		}
	}
	switch {
	case !compiler:
		return "no C compiler (gcc or cc) in PATH"
	case exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run() != nil:
		return "pkg-config finds no libseccomp"
	}
	return ""
}

// install runs apt-get if this process is root and apt-get exists. Its error says why it was not run, or how it failed.
func (i packageInstaller) install(ctx context.Context, why, packages string) error {
	if os.Geteuid() != 0 {
		return errors.New("packages are installed only as root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("packages are installed only by apt-get, which is not here")
	}
	fmt.Fprintf(i.out, "%s: installing %s with apt-get\n", why, packages)
	return runWithLists(ctx, "", append([]string{"install", "-y", "--no-install-recommends", "--no-upgrade"}, strings.Fields(packages)...)...)
}

const (
	busyboxName    = "busybox"
	busyboxPackage = "busybox-static"
)

// busyboxEntry is the folder of the cache for busybox. Its key does not name the version, which only Debian's lists tell: the first
// one that was downloaded stays until the folder is removed.
func busyboxEntry(c cache.Cache) string { return c.EntryPath(busyboxName, busyboxPackage) }

// ensureBusybox downloads Debian's static busybox into the cache if it is not there. It is not installed on this machine.
func (i packageInstaller) ensureBusybox(ctx context.Context, c cache.Cache) error {
	entry := busyboxEntry(c)
	program := filepath.Join(entry, busyboxName)
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	fmt.Fprintf(i.out, "images: downloading %s with apt-get\n", busyboxPackage)
	temp, err := c.MakeTemp(busyboxName)
	if err != nil {
		return err
	}
	defer c.DiscardTemp(temp)
	if err := downloadBusybox(ctx, temp); err != nil {
		return fmt.Errorf("build images: get Debian's package %s: %w\n\tWhat to do: run again where apt-get has a network (needed once), "+
			"or copy a static busybox to %s", busyboxPackage, err, program)
	}
	return c.InstallEntry(temp, entry, busyboxPackage)
}

func downloadBusybox(ctx context.Context, dir string) error {
	if err := runWithLists(ctx, dir, "download", "-o", "APT::Sandbox::User=root", busyboxPackage); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get left %d packages", len(debs))
	}
	if said, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack it: %w: %s", err, bytes.TrimSpace(said))
	}
	program := filepath.Join(dir, busyboxName)
	if err := os.Rename(filepath.Join(dir, "bin", busyboxName), program); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(filepath.Join(dir, "usr/bin", busyboxName), program) // Debian 13 has it there
}

// runWithLists runs apt-get, and again with new package lists if it fails: a fresh machine has none, or old ones.
func runWithLists(ctx context.Context, dir string, args ...string) error {
	err := runAptGet(ctx, dir, args...)
	if err != nil && ctx.Err() == nil {
		if err = runAptGet(ctx, dir, "update"); err == nil {
			err = runAptGet(ctx, dir, args...)
		}
	}
	return err
}

func runAptGet(ctx context.Context, dir string, args ...string) error {
	const most = 5 * time.Minute // 11 MB, fetched here in 3 s; a slow mirror should not block a build indefinitely
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // lets apt-get leave dpkg in order
	cmd.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lines[len(lines)-1])
	}
	return nil
}
