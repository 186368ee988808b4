package toolchain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const modulePath = "github.com/frond-edge/frond"

// findTree returns the source tree. Module zips do not contain the nested modules, so an installed frond needs a clone.
func findTree(given string) (string, error) {
	if given == "" {
		given = os.Getenv("FROND_SOURCE")
	}
	if given != "" {
		dir, err := filepath.Abs(given)
		if err != nil {
			return "", fmt.Errorf("find the source tree: %w", err)
		}
		if !isTree(dir) {
			return "", fmt.Errorf("%s is not a source tree of Frond (no go.mod of %s): name a clone", dir, modulePath)
		}
		return dir, nil
	}
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if isTree(dir) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "", fmt.Errorf("no source tree of Frond at or above %s: run inside a clone, or set FROND_SOURCE to one "+
		"(the programs of a development cluster are built from it)", start)
}

// isTree accepts only the main module: tools/kube has a go.mod too.
func isTree(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return strings.TrimSpace(rest) == modulePath
		}
	}
	return false
}

func cacheDir(given string) (string, error) {
	if given == "" {
		given = os.Getenv("FROND_CACHE")
	}
	if given == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a place to keep what is built: %w: set FROND_CACHE to a folder", err)
		}
		given = filepath.Join(user, "frond")
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("find a place to keep what is built: %w", err)
	}
	return dir, nil
}
