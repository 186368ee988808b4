package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// sources are where images are made of.
type sources struct{ agnhost, pause, packages, tools, sampleAPIServer, etcd string }

// debianPackages are what tests call in shells. apt-get adds what they depend on.
func debianPackages() []string {
	return []string{
		"base-files", "bash", "bind9-dnsutils", "busybox-static", "coreutils", "curl", "findutils", "grep", "hostname", "iperf", "iproute2",
		"libc-bin", "mawk", "netcat-openbsd", "perl-base", "procps", "sed", "socat", "tar", "util-linux",
	}
}

// fetchPackages downloads the packages with all that they depend on, as if nothing were installed on this machine.
func fetchPackages(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return fmt.Errorf("make the folder of packages: %w", err)
	}
	list, wanted := filepath.Join(dir, "packages"), strings.Join(debianPackages(), " ")
	if have, err := os.ReadFile(list); err == nil && string(have) == wanted {
		return nil
	}
	none := filepath.Join(dir, "status")
	if err := os.WriteFile(none, nil, 0o644); err != nil {
		return fmt.Errorf("make an empty list of installed packages: %w", err)
	}
	args := append([]string{
		"-qq", "-y", "--download-only", "--no-install-recommends", "-o", "APT::Sandbox::User=root",
		"-o", "Dir::State::status=" + none, "-o", "Dir::Cache::archives=" + dir, "install",
	}, debianPackages()...)
	if out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("download packages: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := os.WriteFile(list, []byte(wanted), 0o644); err != nil { // last: with it all of them are there
		return fmt.Errorf("note which packages are there: %w", err)
	}
	return nil
}

// base is the layer of programs that tests call in shells.
func (s sources) base(ctx context.Context) (v1.Layer, error) {
	if s.packages == "" {
		return s.toolsLayer(ctx)
	}
	debs, err := filepath.Glob(filepath.Join(s.packages, "*.deb"))
	if err != nil || len(debs) == 0 {
		return nil, fmt.Errorf("no packages in %s: run testimages -fetch: %w", s.packages, errors.Join(err, fs.ErrNotExist))
	}
	var content bytes.Buffer
	w := newTree(&content)
	for _, deb := range debs {
		if err := w.addPackage(ctx, deb); err != nil {
			return nil, err
		}
	}
	// bash keeps variables whose names have dots and dashes, as a test wants; dash and busybox drop them.
	for link, target := range map[string]string{"usr/bin/sh": "bash", "usr/bin/nc": "nc.openbsd", "usr/bin/awk": "mawk"} {
		delete(w.have, link)
		w.addFile(file{name: link, link: target})
	}
	applets, err := busyboxApplets(ctx, w.busybox)
	if err != nil {
		return nil, err
	}
	for _, applet := range applets {
		w.addFile(file{name: "usr/bin/" + applet, link: "busybox"})
	}
	if err := w.close(); err != nil {
		return nil, err
	}
	return layerFrom(content.Bytes())
}

// busyboxApplets asks busybox for its programs: each is there if no package has a program of that name.
func busyboxApplets(ctx context.Context, busybox []byte) ([]string, error) {
	dir, err := os.MkdirTemp("", "testimages-")
	if err != nil {
		return nil, fmt.Errorf("run busybox: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "busybox")
	if err := os.WriteFile(program, busybox, 0o755); err != nil {
		return nil, fmt.Errorf("run busybox: %w", err)
	}
	list, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("run busybox: %w", err)
	}
	return strings.Fields(string(list)), nil
}

func (s sources) toolsLayer(ctx context.Context) (v1.Layer, error) {
	list, err := exec.CommandContext(ctx, s.tools, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the programs of tools: %w", err)
	}
	var content bytes.Buffer
	w := newTree(&content)
	w.addFile(file{name: "usr/bin/tools", from: s.tools, mode: 0o755})
	for applet := range strings.FieldsSeq(string(list)) {
		w.addFile(file{name: "usr/bin/" + applet, link: "tools"})
	}
	if err := w.close(); err != nil {
		return nil, err
	}
	return layerFrom(content.Bytes())
}

// A file of a layer. Its content is text, or that of the file from.
type file struct {
	name, text, from, link string
	dir                    bool
	mode                   int64
}

func layerOf(files []file) (v1.Layer, error) {
	var content bytes.Buffer
	w := &tree{tar: tar.NewWriter(&content), have: map[string]bool{}}
	for _, f := range files {
		w.addFile(f)
	}
	if err := w.close(); err != nil {
		return nil, err
	}
	return layerFrom(content.Bytes())
}

// A tree writes a layer; of two files with one name the first is kept.
type tree struct {
	tar     *tar.Writer
	have    map[string]bool
	busybox []byte
	err     error
}

// newTree begins with the folders every system has. /bin and its like are links into /usr, as in Debian.
func newTree(out io.Writer) *tree {
	w := &tree{tar: tar.NewWriter(out), have: map[string]bool{}}
	for _, d := range []string{"usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "etc", "home", "proc", "root", "run", "sys", "var", "mnt"} {
		w.addFile(file{name: d, dir: true, mode: 0o755})
	}
	w.addFile(file{name: "tmp", dir: true, mode: 0o1777})
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		w.addFile(file{name: d, link: "usr/" + d})
	}
	w.addFile(file{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"})
	w.addFile(file{name: "etc/group", mode: 0o644, text: "root:x:0:\nnogroup:x:65534:\n"})
	return w
}

func (w *tree) addFile(f file) {
	h := &tar.Header{Name: f.name, Mode: f.mode, Typeflag: tar.TypeReg, Linkname: f.link}
	var content []byte
	switch {
	case f.dir:
		h.Typeflag, h.Name = tar.TypeDir, f.name+"/"
	case f.link != "":
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
	case f.from != "":
		var err error
		if content, err = os.ReadFile(f.from); err != nil && w.err == nil {
			w.err = err
		}
	default:
		content = []byte(f.text)
	}
	h.Size = int64(len(content))
	w.write(h, bytes.NewReader(content))
}

func (w *tree) write(h *tar.Header, content io.Reader) {
	name := path.Clean(h.Name)
	if w.err != nil || w.have[name] {
		return
	}
	w.have[name] = true
	h.ModTime, h.AccessTime, h.ChangeTime, h.Format = epoch(), epoch(), epoch(), tar.FormatPAX
	if w.err = w.tar.WriteHeader(h); w.err == nil {
		_, w.err = io.Copy(w.tar, content)
	}
}

func (w *tree) close() error { return errors.Join(w.err, w.tar.Close()) }

// addPackage adds what a package installs, without its documentation.
func (w *tree) addPackage(ctx context.Context, deb string) error {
	data, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.err
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
		h.Name = merged(h.Name)
		if h.Name == "." || strings.HasPrefix(h.Name, "usr/share/") && !strings.HasPrefix(h.Name, "usr/share/perl") {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = merged(h.Linkname)
		}
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if h.Name == "usr/bin/busybox" {
			if w.busybox, err = io.ReadAll(r); err != nil {
				return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
			}
			w.write(h, bytes.NewReader(w.busybox))
			continue
		}
		w.write(h, r)
	}
}

// merged is the place of a file in a system whose /bin is a link to /usr/bin.
func merged(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	for _, top := range []string{"bin", "sbin", "lib", "lib64"} {
		if name == top || strings.HasPrefix(name, top+"/") {
			return "usr/" + name
		}
	}
	return name
}
