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
	// othersMode are the permissions that only edgecore may have in its folders.
	othersMode = 0o077
)

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
