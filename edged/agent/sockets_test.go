package agent_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/frond-edge/frond/edged/agent"
	"github.com/frond-edge/frond/test/kit"
)

func TestSocket_OpensToOneGroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	kit.Must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "api.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, listener.Close()) })
	kit.Must(t, os.Chmod(path, 0o600))
	if err := agent.ShareSocket(path, "no-such-group"); err == nil {
		t.Error("a group that does not exist is no error")
	}
	info, err := os.Stat(path)
	kit.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o before a group is known", info.Mode().Perm())
	}
	gid := os.Getegid()
	if os.Geteuid() == 0 {
		gid = 65534 // root may give it to any group
	}
	kit.Must(t, agent.ShareSocket(path, strconv.Itoa(gid)))
	info, err = os.Stat(path)
	kit.Must(t, err)
	if got := int(info.Sys().(*syscall.Stat_t).Gid); got != gid || info.Mode().Perm() != 0o660 {
		t.Errorf("group %d, mode %o; want %d, 660", got, info.Mode().Perm(), gid)
	}
}
