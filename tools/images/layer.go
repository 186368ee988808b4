package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image is one image to be made.
type image struct {
	name   string // without the registry
	layers []v1.Layer
	config v1.Config
}

func (i image) build() (v1.Image, error) {
	built, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.DockerManifestSchema2), &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: epoch()}, Config: i.config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(built, i.layers...)
}

func epoch() time.Time { return time.Unix(0, 0).UTC() }

// sources are what images are made of. The programs pause, http and busybox are in the folder programs.
type sources struct{ programs, agnhost, packages, sampleAPIServer, etcd string }

// debianPackages are what tests call in shells. apt-get adds what they depend on.
func debianPackages() []string {
	return []string{
		"base-files", "bash", "bind9-dnsutils", "coreutils", "curl", "findutils", "grep", "hostname", "iperf", "iproute2",
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
	if err := runAptGet(ctx, args); err != nil { // a fresh machine has no package lists, or old ones
		if err := runAptGet(ctx, []string{"-qq", "update"}); err != nil {
			return fmt.Errorf("download packages: %w", err)
		}
		if err := runAptGet(ctx, args); err != nil {
			return fmt.Errorf("download packages: %w", err)
		}
	}
	if err := os.WriteFile(list, []byte(wanted), 0o644); err != nil { // last: with it all of them are there
		return fmt.Errorf("note which packages are there: %w", err)
	}
	return nil
}

func runAptGet(ctx context.Context, args []string) error {
	if out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// baseLayer is the layer of programs that tests call in shells.
func (s sources) baseLayer(ctx context.Context) (v1.Layer, error) {
	busybox, err := s.busyboxFiles(ctx)
	if err != nil {
		return nil, err
	}
	w := newTree()
	w.addFiles(systemFiles())
	if s.packages != "" {
		// bash keeps variables whose names have dots and dashes, as a test wants; dash and busybox drop them.
		w.addFiles([]file{{name: "usr/bin/sh", link: "bash"}, {name: "usr/bin/nc", link: "nc.openbsd"}, {name: "usr/bin/awk", link: "mawk"}})
		debs, err := filepath.Glob(filepath.Join(s.packages, "*.deb"))
		if err != nil || len(debs) == 0 {
			return nil, fmt.Errorf("no packages in %s: run images -fetch: %w", s.packages, errors.Join(err, fs.ErrNotExist))
		}
		for _, deb := range debs {
			if err := w.addPackage(ctx, deb); err != nil {
				return nil, err
			}
		}
	}
	w.addFiles(busybox) // an applet is there if no package has a program of that name
	return w.layer()
}

// A file of a layer. Its content is text, or that of the file from.
type file struct {
	name, text, from, link string
	dir                    bool
	mode                   int64
}

// systemFiles are what programs expect to find. /bin and its like are links into /usr, as in Debian.
func systemFiles() []file {
	var files []file
	for _, d := range []string{"usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "etc", "home", "proc", "root", "run", "sys", "var", "mnt"} {
		files = append(files, file{name: d, dir: true, mode: 0o755})
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		files = append(files, file{name: d, link: "usr/" + d})
	}
	return append(files, file{name: "tmp", dir: true, mode: 0o1777},
		file{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/sh\n" +
			"nonroot:x:65532:65532:nonroot:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"},
		file{name: "etc/group", mode: 0o644, text: "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n"})
}

func layerOf(files []file, options ...tarball.LayerOption) (v1.Layer, error) {
	w := newTree()
	w.addFiles(files)
	return w.layer(options...)
}

// A tree writes a layer; of two files with one name the first is kept.
type tree struct {
	content bytes.Buffer
	tar     *tar.Writer
	have    map[string]bool
	err     error
}

func newTree() *tree {
	w := &tree{have: map[string]bool{}}
	w.tar = tar.NewWriter(&w.content)
	return w
}

func (w *tree) addFiles(files []file) {
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Typeflag: tar.TypeReg, Linkname: f.link}
		content := []byte(f.text)
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
		}
		h.Size = int64(len(content))
		w.writeEntry(h, bytes.NewReader(content))
	}
}

func (w *tree) writeEntry(h *tar.Header, content io.Reader) {
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
		h.Name = mergeUsr(h.Name)
		if h.Name == "." || strings.HasPrefix(h.Name, "usr/share/") && !strings.HasPrefix(h.Name, "usr/share/perl") {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = mergeUsr(h.Linkname)
		}
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		w.writeEntry(h, r)
	}
}

// mergeUsr returns the place of a file in a system whose /bin is a link to /usr/bin.
func mergeUsr(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	for _, top := range []string{"bin", "sbin", "lib", "lib64"} {
		if name == top || strings.HasPrefix(name, top+"/") {
			return "usr/" + name
		}
	}
	return name
}

func (w *tree) layer(options ...tarball.LayerOption) (v1.Layer, error) {
	if err := errors.Join(w.err, w.tar.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(w.content.Bytes())), nil }
	return tarball.LayerFromOpener(open, append([]tarball.LayerOption{tarball.WithCompressionLevel(gzip.BestSpeed)}, options...)...)
}
