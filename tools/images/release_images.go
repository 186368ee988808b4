package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// release is what the images of Frond are made of.
type release struct {
	dir, version, push string
	programs           map[string]string // folder by architecture
}

// releaseImage is one image of Frond: its programs, the first of which is its entrypoint.
type releaseImage struct {
	name, title string
	programs    []string
}

func releaseImages() []releaseImage {
	return []releaseImage{
		{name: "cloudcore", title: "Frond's cloudcore, and frond for administrators", programs: []string{"cloudcore", "frond"}},
		{name: "hub", title: "nats-server for Frond's hub", programs: []string{"nats-server"}},
	}
}

// addPrograms reads ARCHITECTURE=DIR.
func (r *release) addPrograms(text string) error {
	architecture, dir, ok := strings.Cut(text, "=")
	if !ok || architecture == "" || dir == "" {
		return fmt.Errorf("%q is not ARCHITECTURE=DIR", text)
	}
	if _, again := r.programs[architecture]; again {
		return fmt.Errorf("two folders for %s", architecture)
	}
	r.programs[architecture] = dir
	return nil
}

// write makes all images, sends them where they are wanted, and prints a line for each: its name and tag, and its digest.
func (r *release) write(ctx context.Context, out io.Writer) error {
	if r.version == "" || len(r.programs) == 0 {
		return errors.New("-release needs -version and -programs")
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of images: %w", err)
	}
	for _, image := range releaseImages() {
		index, err := r.index(image)
		if err != nil {
			return fmt.Errorf("make the image %s: %w", image.name, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return fmt.Errorf("make the image %s: %w", image.name, err)
		}
		if err := writeArchive(filepath.Join(r.dir, image.name+".tar"), index, image.name+":"+r.version); err != nil {
			return fmt.Errorf("write the image %s: %w", image.name, err)
		}
		reference := image.name + ":" + r.version
		if r.push != "" {
			reference = r.push + "/" + reference
			tag, err := name.NewTag(reference)
			if err != nil {
				return fmt.Errorf("name the image %s: %w", image.name, err)
			}
			if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
				return fmt.Errorf("send the image %s: %w", reference, err)
			}
		}
		fmt.Fprintln(out, reference, digest)
	}
	return nil
}

// index returns the image for all architectures.
func (r *release) index(image releaseImage) (v1.ImageIndex, error) {
	var index v1.ImageIndex = empty.Index
	for _, architecture := range slices.Sorted(maps.Keys(r.programs)) {
		built, err := r.build(image, architecture)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: built, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return index, nil
}

// build returns the image for one architecture. It has no shell and no files but the programs, users and /tmp.
func (r *release) build(image releaseImage, architecture string) (v1.Image, error) {
	files := systemFiles()
	for _, program := range image.programs {
		files = append(files, file{name: "usr/bin/" + program, from: filepath.Join(r.programs[architecture], program), mode: 0o755})
	}
	layer, err := layerOf(files, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: architecture, OS: "linux", Created: v1.Time{Time: epoch()}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/" + image.programs[0]}, Env: []string{searchPath}, User: "65532:65532", WorkingDir: "/tmp",
			Labels: map[string]string{
				"org.opencontainers.image.title": image.title, "org.opencontainers.image.version": r.version, "org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(built, layer)
}

// writeArchive writes the index as an OCI archive, which containerd, Docker, Podman and skopeo read. The same index gives the same bytes.
func writeArchive(path string, index v1.ImageIndex, reference string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary files
	into, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	_, tag, _ := strings.Cut(reference, ":")
	if err := into.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": reference,
	})); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(out, dir), out.Close())
}

// writeTar writes the files below a folder in the order of their names, with fixed times and owners.
func writeTar(out io.Writer, dir string) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(relative), Mode: 0o644, ModTime: epoch(), Format: tar.FormatPAX}
		if d.IsDir() {
			h.Name, h.Mode, h.Typeflag = h.Name+"/", 0o755, tar.TypeDir
			return w.WriteHeader(h)
		}
		content, err := os.Open(path)
		if err != nil {
			return err
		}
		defer content.Close() //nolint:errcheck // only read
		info, err := content.Stat()
		if err != nil {
			return err
		}
		h.Size = info.Size()
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.Copy(w, content)
		return err
	})
	return errors.Join(err, w.Close())
}
