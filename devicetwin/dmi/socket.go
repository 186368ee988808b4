package dmi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
)

// probeTimeout bounds the question whether somebody listens on a socket that is there.
const probeTimeout = time.Second

// listen listens on the socket of the folder. Mappers in pods mount the folder, so it is checked that nobody else has made it; a socket that an
// edgecore which was killed has left is replaced.
func listen(ctx context.Context, dir string) (*net.UnixListener, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, mapper.SocketName)
	if err := checkStale(ctx, path); err != nil {
		return nil, err
	}
	// The name appears when the socket has its mode, and takes the place of a stale one or of a link, not of what that points to.
	temporary := filepath.Join(dir, "."+mapper.SocketName)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier start left: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(temporary, 0o660)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), listener.Close())
	}
	return listener, nil
}

// checkDir makes the folder if it is missing, and refuses one that others could have put there or may change.
func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the sockets: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("the folder of the sockets: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is no folder; a link is not followed", dir)
	case ok && int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return fmt.Errorf("%s belongs to user %d", dir, stat.Uid)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("each user may write to %s", dir)
	}
	return nil
}

// checkStale returns an error if the path cannot be replaced: somebody listens there, or it is something else.
func checkStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the socket: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is no socket: remove it", path)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process listens on %s", path), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("whether somebody listens on %s: %w", path, err)
	}
	return nil
}

// removeSocket removes the socket if it is still this one.
func removeSocket(dir string, made os.FileInfo) {
	path := filepath.Join(dir, mapper.SocketName)
	if now, err := os.Lstat(path); err == nil && os.SameFile(now, made) {
		_ = os.Remove(path) // the next start replaces it
	}
}
