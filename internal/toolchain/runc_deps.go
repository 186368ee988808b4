package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// runcPackages are the Debian packages to compile runc. It needs none of them to run.
const runcPackages = "gcc libc6-dev libseccomp-dev pkg-config"

// ensureCCompiler makes sure that runc can be compiled. As root on Debian it installs missing packages; otherwise its error lists them.
func (b *builder) ensureCCompiler(ctx context.Context) error {
	missing := missingForC(ctx)
	if missing == "" {
		return nil
	}
	fault := b.installPackages(ctx, "runc", runcPackages)
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

// installPackages runs apt-get if this process is root and apt-get exists. Its error says why it was not run, or how it failed.
func (b *builder) installPackages(ctx context.Context, why, packages string) error {
	if os.Geteuid() != 0 {
		return errors.New("packages are installed only as root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("packages are installed only by apt-get, which is not here")
	}
	fmt.Fprintf(b.out, "%s: installing %s with apt-get\n", why, packages)
	install := append([]string{"install", "-y", "--no-install-recommends", "--no-upgrade"}, strings.Fields(packages)...)
	err := runAptGet(ctx, install...)
	if err != nil && ctx.Err() == nil { // a fresh machine has no package lists, or old ones
		if err = runAptGet(ctx, "update"); err == nil {
			err = runAptGet(ctx, install...)
		}
	}
	return err
}

func runAptGet(ctx context.Context, args ...string) error {
	const most = 5 * time.Minute // 11 MB, fetched here in 3 s; a slow mirror should not block a build indefinitely
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
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

// runWriter runs the program that a recipe's build made, in the folder of the result, then removes all programs there.
func (b *builder) runWriter(ctx context.Context, j job, dir string) error {
	programs, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return fmt.Errorf("build %s: %w", j.name, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, j.write[0]), j.write[1:]...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %s: %w: %s", j.name, j.write[0], err, bytes.TrimSpace(said))
	}
	for _, program := range programs {
		if err := os.Remove(program); err != nil {
			return fmt.Errorf("build %s: %w", j.name, err)
		}
	}
	return nil
}
