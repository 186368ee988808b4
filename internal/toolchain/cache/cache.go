// Package cache keeps built programs in a folder by a key of all that goes into them.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Cache is a folder of finished results, NAME-KEY, lock files and builds in progress.
type Cache struct{ Dir string }

const (
	tempPrefix = "building-"
	recipeFile = "recipe.txt"
)

// EntryPath returns the folder of a program that was built from what the text says.
func (c Cache) EntryPath(name, text string) string {
	return filepath.Join(c.Dir, name+"-"+Key(text))
}

// TouchEntry reports whether the entry exists, and updates its time of use, so that prune keeps it.
func (c Cache) TouchEntry(entry string) bool {
	if _, err := os.Stat(filepath.Join(entry, recipeFile)); err != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(entry, now, now) // fails in another user's cache, which is as usable
	return true
}

// lockPoll is the retry interval of a waiter: flock cannot both wait and be cancelled, and builds take seconds.
const lockPoll = 200 * time.Millisecond

// Lock waits until no other process holds the lock of this name. The kernel releases the lock of a killed process.
func (c Cache) Lock(ctx context.Context, name string, out io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w: set FROND_CACHE to a folder you can write", err)
	}
	path := filepath.Join(c.Dir, name+".lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w: set FROND_CACHE to a folder you can write", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for told := false; ; told = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			fmt.Fprintf(out, "another process is building %s; waiting for it (lock %s)\n", name, path)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("wait for the process that builds %s: %w", name, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// MakeTemp makes an empty folder to build in. The caller holds the lock, so folders of the same name belong to dead runs.
func (c Cache) MakeTemp(name string) (string, error) {
	old, err := filepath.Glob(filepath.Join(c.Dir, tempPrefix+name+"-*"))
	if err != nil {
		return "", fmt.Errorf("look for leftovers: %w", err)
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("remove what an interrupted build left: %w", err)
		}
	}
	dir, err := os.MkdirTemp(c.Dir, tempPrefix+name+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder to build in: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // MkdirTemp makes 0700; a cache may be shared
		return "", fmt.Errorf("make a folder to build in: %w", err)
	}
	return dir, nil
}

// DiscardTemp removes a folder of MakeTemp; the next MakeTemp removes what is left.
func (c Cache) DiscardTemp(temp string) { _ = os.RemoveAll(temp) }

// InstallEntry makes temp the entry. The files are synced first: after a power cut an entry is whole or absent.
func (c Cache) InstallEntry(temp, entry, text string) error {
	if err := os.WriteFile(filepath.Join(temp, recipeFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(entry), err)
	}
	if err := syncTree(temp); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(entry), err)
	}
	if err := os.RemoveAll(entry); err != nil { // can only be a folder without recipe.txt, made by accident
		return fmt.Errorf("install %s: %w", filepath.Base(entry), err)
	}
	if err := os.Rename(temp, entry); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(entry), err)
	}
	return nil
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}

// minEntryAge is how long an entry is kept at least: a running cluster has links to its programs.
const minEntryAge = 24 * time.Hour

// Prune removes all but the newest entries of a name. A failure to remove one must not fail a successful build.
func (c Cache) Prune(name string, keep int, current string) {
	found, err := filepath.Glob(filepath.Join(c.Dir, name+"-*"))
	if err != nil {
		return
	}
	used := map[string]time.Time{}
	var dirs []string
	for _, dir := range found {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || dir == current || !isKey(strings.TrimPrefix(filepath.Base(dir), name+"-")) {
			continue
		}
		used[dir] = info.ModTime()
		dirs = append(dirs, dir)
	}
	slices.SortFunc(dirs, func(a, b string) int { return used[b].Compare(used[a]) })
	for i, dir := range dirs {
		if i >= keep-1 && time.Since(used[dir]) > minEntryAge {
			_ = os.RemoveAll(dir)
		}
	}
}

func isKey(s string) bool {
	return len(s) == 16 && strings.Trim(s, "0123456789abcdef") == ""
}

// Key shortens a key text. 16 hex digits are 64 bits: no collision among a few hundred folders.
func Key(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
