package peer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// makeCgroup makes a control group below the root, and returns its folder. It skips where that is not allowed.
func makeCgroup(t *testing.T, path string) string {
	t.Helper()
	var errs []error
	for _, hierarchy := range []string{"", "pids", "unified"} { // version 2; version 1, of which one controller is enough; both
		top := filepath.Join("/sys/fs/cgroup", hierarchy)
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
			errs = append(errs, err)
			continue
		}
		dir := filepath.Join(top, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		t.Cleanup(func() {
			for ; dir != top; dir = filepath.Dir(dir) {
				_ = os.Remove(dir) // a parent may be another test's too
			}
		})
		return dir
	}
	if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
		t.Fatalf("REQUIRE names root, and no control group can be made: %v", errs)
	}
	t.Skipf("no control group can be made: %v", errs)
	return ""
}

// TestIdentify_Pod: the peer is the pod whose control group the kernel shows.
func TestIdentify_Pod(t *testing.T) {
	const uid = "0a1b2c3d-1111-2222-3333-444455556666"
	root := fmt.Sprintf("/frond-test-%d", os.Getpid())
	dir := makeCgroup(t, root+"/kubepods/burstable/pod"+uid+"/container")
	conn, cmd := accept(t, connector(t))
	defer func() {
		_ = conn.Close() // ends the process, so that the control group can be removed
		_ = cmd.Wait()
	}()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	for cgroupRoot, want := range map[string]string{root: uid, "": ""} {
		got, err := peer.Identify(conn, cgroupRoot)
		if err != nil || string(got.Pod) != want {
			t.Errorf("below %q: peer %+v, %v; want pod %q", cgroupRoot, got, err, want)
		}
	}
}
