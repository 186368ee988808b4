package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
)

const (
	dirMode = 0o700
	// enterableMode is for a new folder with a socket that users of a group may open: they must be able to enter it.
	enterableMode = 0o711
	// othersMode are the permissions that only edgecore may have in its folders.
	othersMode = 0o077
)

// makeFolders creates the node's folders.
func makeFolders(cfg config.EdgeCore, log *zap.Logger) error {
	for _, dir := range []string{cfg.Dir, identityDir(cfg)} {
		if err := ensurePrivateDir(dir, log); err != nil {
			return err
		}
	}
	for _, dir := range []string{kubeletDir(cfg), cfg.Kubelet.StaticPodPath} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return err
		}
	}
	var socketDirMode os.FileMode = dirMode
	if cfg.LocalAPI.SocketGroup != "" {
		socketDirMode = enterableMode
	}
	return os.MkdirAll(filepath.Dir(cfg.LocalAPI.Socket), socketDirMode)
}

// highWaterFile exists if the node has had a store.
func highWaterFile(cfg config.EdgeCore) string { return filepath.Join(cfg.Dir, "store.mark") }

// hollowSocket is the hollow runtime's, in the local API's folder, whose path is short enough for a socket.
func hollowSocket(cfg config.EdgeCore) string {
	return filepath.Join(filepath.Dir(cfg.LocalAPI.Socket), "cri.sock")
}

func kubeletDir(cfg config.EdgeCore) string { return filepath.Join(cfg.Dir, "kubelet") }

// identityDir holds the node's keys.
func identityDir(cfg config.EdgeCore) string { return filepath.Join(cfg.Dir, "identity") }

// ensurePrivateDir creates a folder for edgecore alone, or removes the permissions of other users from an existing one.
func ensurePrivateDir(dir string, log *zap.Logger) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if mode&othersMode == 0 {
		return nil
	}
	if err := os.Chmod(dir, dirMode); err != nil {
		return fmt.Errorf("others may read %s (mode %o), which holds keys; run edgecore as its owner, or chmod it to 0700: %w", dir, mode, err)
	}
	log.Warn("others could read a folder with keys, closed it to them", zap.String("dir", dir), zap.Stringer("mode", mode))
	return nil
}
