package devcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/frond-edge/frond/internal/devcluster/cgroups"
)

// maxDirLength bounds the length of the folder's path: the kubelet has unix sockets up to 52 bytes below it, and socket paths
// hold 107 bytes at most.
const maxDirLength = 55

// runPreflight returns an error that lists everything that is missing for a spec, with a fix for each.
func runPreflight(dir string, spec Spec) error {
	if len(dir) > maxDirLength {
		return fmt.Errorf("--dir %s is %d bytes long, too long for unix sockets below it: choose one of up to %d", dir, len(dir), maxDirLength)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the development cluster needs Linux, this is %s", runtime.GOOS)
	}
	if spec.Runtime != Containerd {
		return nil
	}
	var errs []error
	for tool, debian := range map[string]string{"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: apt-get install %s (or --runtime hollow)", tool, debian))
		}
	}
	if _, err := os.Stat(cgroups.Root); err != nil {
		errs = append(errs, fmt.Errorf("no cgroups are mounted at %s: mount them (or --runtime hollow)", cgroups.Root))
	} else if f, err := os.MkdirTemp(cgroups.Dirs("")[0], "frond-probe-"); err != nil {
		errs = append(errs, fmt.Errorf("cgroups at %s cannot be changed, as in an unprivileged container: %w: "+
			"run privileged (or --runtime hollow)", cgroups.Root, err))
	} else if err := os.Remove(f); err != nil {
		errs = append(errs, fmt.Errorf("remove probe: %w", err))
	}
	if out, err := exec.Command("unshare", "--net", "--mount", "true").CombinedOutput(); err != nil { //nolint:noctx // returns at once
		errs = append(errs, fmt.Errorf("namespaces cannot be made: %w: %s: run privileged (or --runtime hollow)", err, out))
	}
	return errors.Join(errs...)
}
