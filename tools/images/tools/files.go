package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func ls(c call) (int, error) {
	opts, paths, err := options(c.args, "laA1dLRh", "")
	if err != nil {
		return 2, err
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	_, hidden := opts['a']
	if _, also := opts['A']; also {
		hidden = true
	}
	_, long := opts['l']
	_, self := opts['d']
	var faults []error
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if self || !info.IsDir() {
			faults = append(faults, show(c, path, path, long))
			continue
		}
		if len(paths) > 1 {
			fmt.Fprintf(c.out, "%s:\n", path)
		}
		entries, err := os.ReadDir(path)
		faults = append(faults, err)
		for _, e := range entries {
			if hidden || !strings.HasPrefix(e.Name(), ".") {
				faults = append(faults, show(c, filepath.Join(path, e.Name()), e.Name(), long))
			}
		}
	}
	return 0, errors.Join(faults...)
}

func show(c call, path, name string, long bool) error {
	if !long {
		fmt.Fprintln(c.out, name)
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	uid, gid, links := uint32(0), uint32(0), uint64(0)
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		uid, gid, links = s.Uid, s.Gid, uint64(s.Nlink) //nolint:unconvert // it is a uint32 on arm64
	}
	if target, err := os.Readlink(path); err == nil {
		name += " -> " + target
	}
	mode := info.Mode().String()
	if info.Mode()&fs.ModeSymlink != 0 {
		mode = "l" + mode[1:]
	}
	fmt.Fprintf(c.out, "%s %4d %5d %5d %9d %s %s\n", mode, links, uid, gid, info.Size(), info.ModTime().Format(time.DateTime), name)
	return nil
}

func mkdir(c call) (int, error) {
	opts, dirs, err := options(c.args, "p", "m")
	if err != nil {
		return 2, err
	}
	make := os.Mkdir
	if _, ok := opts['p']; ok {
		make = os.MkdirAll
	}
	var faults []error
	for _, dir := range dirs {
		faults = append(faults, make(dir, 0o777))
	}
	return 0, errors.Join(faults...)
}

func rm(c call) (int, error) {
	opts, paths, err := options(c.args, "rRf", "")
	if err != nil {
		return 2, err
	}
	_, force := opts['f']
	_, deep := opts['r']
	if _, also := opts['R']; also {
		deep = true
	}
	var faults []error
	for _, path := range paths {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && force:
			continue
		case err == nil && info.IsDir() && deep:
			err = os.RemoveAll(path)
		case err == nil && info.IsDir():
			err = fmt.Errorf("%s is a folder", path)
		case err == nil:
			err = os.Remove(path)
		}
		faults = append(faults, err)
	}
	return 0, errors.Join(faults...)
}

func touch(c call) (int, error) {
	_, paths, err := options(c.args, "acm", "")
	if err != nil {
		return 2, err
	}
	var faults []error
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
		if err == nil {
			now := time.Now()
			err = errors.Join(file.Close(), os.Chtimes(path, now, now))
		}
		faults = append(faults, err)
	}
	return 0, errors.Join(faults...)
}

func mv(c call) (int, error) {
	_, paths, err := options(c.args, "fT", "")
	if err != nil {
		return 2, err
	}
	return pairs(paths, os.Rename)
}

func cp(c call) (int, error) {
	opts, paths, err := options(c.args, "rRafLT", "")
	if err != nil {
		return 2, err
	}
	deep := false
	for flag := range opts {
		deep = deep || slices.Contains([]rune("rRa"), flag)
	}
	return pairs(paths, func(from, to string) error {
		if info, err := os.Stat(from); err != nil || info.IsDir() && !deep {
			return errors.Join(err, fmt.Errorf("%s is not copied", from))
		}
		return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			target := filepath.Join(to, strings.TrimPrefix(path, from))
			if d.IsDir() {
				return os.MkdirAll(target, 0o777)
			}
			return copyFile(path, target)
		})
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// pairs applies do to each path and the last one, or its place below the last one if that is a folder.
func pairs(paths []string, do func(from, to string) error) (int, error) {
	if len(paths) < 2 {
		return 2, errors.New("needs a source and a target")
	}
	last := paths[len(paths)-1]
	info, err := os.Stat(last)
	into := err == nil && info.IsDir()
	if len(paths) > 2 && !into {
		return 1, fmt.Errorf("%s is not a folder", last)
	}
	var faults []error
	for _, from := range paths[:len(paths)-1] {
		to := last
		if into {
			to = filepath.Join(last, filepath.Base(from))
		}
		faults = append(faults, do(from, to))
	}
	return 0, errors.Join(faults...)
}
