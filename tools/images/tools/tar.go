package main

import (
	stdtar "archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// tar packs to standard output and unpacks from standard input, which is what kubectl cp asks of a container: cf - and
// xmf -, with -C. Owners are left alone.
func tar(c call) (int, error) {
	var words []string
	for i, arg := range c.args {
		switch {
		case arg == "--no-same-permissions" || arg == "--no-same-owner":
		case i == 0 && !strings.HasPrefix(arg, "-"):
			words = append(words, "-"+arg) // "cf" is "-cf"
		default:
			words = append(words, arg)
		}
	}
	opts, names, err := options(words, "cxm", "fC")
	if err != nil {
		return 2, err
	}
	if opts['f'] != "-" {
		return 2, errors.New("only f - is known")
	}
	dir := "."
	if d, ok := opts['C']; ok {
		dir = d
	}
	_, create := opts['c']
	if _, extract := opts['x']; create == extract {
		return 2, errors.New("one of c and x is needed")
	}
	if create {
		return 0, pack(c.out, dir, names)
	}
	return 0, unpack(c.in, dir)
}

func pack(out io.Writer, dir string, names []string) error {
	w := stdtar.NewWriter(out)
	for _, name := range names {
		top := name
		if !filepath.IsAbs(name) {
			top = filepath.Join(dir, name)
		}
		err := filepath.WalkDir(top, func(p string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(top, p)
			if err != nil {
				return err
			}
			return packOne(w, p, strings.TrimLeft(path.Join(name, below), "/"))
		})
		if err != nil {
			return err
		}
	}
	return w.Close()
}

func packOne(w *stdtar.Writer, file, name string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := stdtar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = name
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// unpack writes nothing outside dir, whatever the names say.
func unpack(in io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it that a close could lose
	for r := stdtar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.FromSlash(strings.TrimLeft(path.Clean(header.Name), "/"))
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch mode := header.FileInfo().Mode(); {
		case mode.IsDir():
			err = root.MkdirAll(name, mode.Perm()|0o700)
		case mode.IsRegular():
			err = unpackFile(root, name, mode.Perm(), r)
		case mode&fs.ModeSymlink != 0:
			err = root.Symlink(header.Linkname, name)
		default:
			err = fmt.Errorf("%s: neither file, folder nor link", name)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, mode fs.FileMode, in io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}
