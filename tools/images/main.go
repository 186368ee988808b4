// Command images writes the container images of the development cluster as tars for `ctr images import`.
//
// It packs the programs pause, tools and http from the working folder into pause.tar, tools.tar and http.tar there.
// No registry and no base image is involved, and the same programs give the same bytes: fixed times, fixed order. A
// tar holds an OCI image layout; its index carries the name under which containerd lists the image.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const searchPath = "PATH=/bin"

// An image is one layer of files and a config. Programs are read from the working folder.
type image struct {
	name    string
	program string // becomes /bin/PROGRAM
	links   []string
	config  v1.Config
}

func main() { os.Exit(run(os.Stderr)) }

func run(stderr io.Writer) int {
	links, err := applets()
	if err != nil {
		fmt.Fprintln(stderr, "images:", err)
		return 1
	}
	for _, img := range images(links) {
		if err := write(img, img.program+".tar"); err != nil {
			fmt.Fprintf(stderr, "images: %s: %v\n", img.name, err)
			return 1
		}
	}
	return 0
}

func images(toolNames []string) []image {
	return []image{
		{
			name: "localhost/frond/pause:dev", program: "pause",
			config: v1.Config{Entrypoint: []string{"/bin/pause"}, User: "65535:65535"}, // upstream's pause runs as this user
		},
		{
			name: "localhost/frond/tools:dev", program: "tools", links: toolNames,
			config: v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}},
		},
		{
			name: "localhost/frond/http:dev", program: "http",
			config: v1.Config{
				Entrypoint: []string{"/bin/http"}, Env: []string{searchPath}, User: "65532:65532",
				ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			},
		},
	}
}

// applets asks the tools program for the names under which it acts.
func applets() ([]string, error) {
	list, err := exec.CommandContext(context.Background(), "./tools", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the programs of tools: %w", err)
	}
	return strings.Fields(string(list)), nil
}

func write(img image, file string) error {
	layer, err := layerOf(img)
	if err != nil {
		return err
	}
	built, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: epoch()}, Config: img.config,
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return err
	}
	built = mutate.ConfigMediaType(built, types.OCIConfigJSON)
	built, err = mutate.Append(built, mutate.Addendum{
		Layer: static.NewLayer(layer, types.OCIUncompressedLayer), History: v1.History{Created: v1.Time{Time: epoch()}, CreatedBy: "frond"},
	})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := writeLayout(&out, built, img.name); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

func epoch() time.Time { return time.Unix(0, 0).UTC() }

// layerOf makes the root file system: the program, its other names, and what programs expect to find.
func layerOf(img image) ([]byte, error) {
	program, err := os.ReadFile(img.program)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	put := func(h tar.Header, content string) {
		h.Size, h.ModTime, h.Format = int64(len(content)), epoch(), tar.FormatPAX
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = io.WriteString(w, content)
		}
	}
	for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "root/", "run/", "sys/", "var/"} {
		put(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	put(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		"root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")
	put(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n")
	put(tar.Header{Name: "bin/" + img.program, Typeflag: tar.TypeReg, Mode: 0o755}, string(program))
	for _, link := range img.links {
		put(tar.Header{Name: "bin/" + link, Typeflag: tar.TypeSymlink, Linkname: img.program, Mode: 0o777}, "")
	}
	if err == nil {
		err = w.Close()
	}
	return buf.Bytes(), err
}

// writeLayout writes an OCI image layout of one image as a tar.
func writeLayout(out io.Writer, img v1.Image, name string) error {
	w := tar.NewWriter(out)
	put := func(name string, content []byte) error {
		header := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: epoch(), Format: tar.FormatPAX}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	index, blobs, err := parts(img, name)
	if err != nil {
		return err
	}
	if err := put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := put("index.json", index); err != nil {
		return err
	}
	for _, blob := range blobs {
		hash, _, err := v1.SHA256(bytes.NewReader(blob))
		if err != nil {
			return err
		}
		if err := put("blobs/"+hash.Algorithm+"/"+hash.Hex, blob); err != nil {
			return err
		}
	}
	return w.Close()
}

// parts returns the index that names the image, and the blobs: manifest, config, layers.
func parts(img v1.Image, name string) (index []byte, blobs [][]byte, err error) {
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, nil, err
	}
	blobs = [][]byte{manifest, config}
	layers, err := img.Layers()
	if err != nil {
		return nil, nil, err
	}
	for _, layer := range layers {
		content, err := layer.Compressed()
		if err != nil {
			return nil, nil, err
		}
		blob, err := io.ReadAll(content)
		if err != nil {
			return nil, nil, err
		}
		blobs = append(blobs, blob)
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, nil, err
	}
	index, err = json.Marshal(v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType: types.OCIManifestSchema1, Digest: digest, Size: int64(len(manifest)),
			Platform:    &v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Annotations: map[string]string{"io.containerd.image.name": name},
		}},
	})
	return index, blobs, err
}
