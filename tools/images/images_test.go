package main_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// built compiles the module's programs as internal/toolchain does.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir+"/", ".", "./pause", "./tools", "./http")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

func entries(t *testing.T, content []byte) map[string]*tar.Header {
	t.Helper()
	all := map[string]*tar.Header{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Size < 1<<20 { // manifests and configs, kept where the test finds them
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			h.PAXRecords = map[string]string{"content": string(content)}
		}
		all[h.Name] = h
	}
}

func TestImagesAreReproducibleAndNamed(t *testing.T) {
	dir := built(t)
	pack := func() map[string][]byte {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "images"))
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("images: %v\n%s", err, out)
		}
		tars := map[string][]byte{}
		for _, name := range []string{"pause", "tools", "http"} {
			content, err := os.ReadFile(filepath.Join(dir, name+".tar"))
			if err != nil {
				t.Fatal(err)
			}
			tars[name] = content
		}
		return tars
	}
	first, second := pack(), pack()
	for name, content := range first {
		if !bytes.Equal(content, second[name]) {
			t.Errorf("%s: two runs differ", name)
		}
		files := entries(t, content)
		var index v1.IndexManifest
		if err := json.Unmarshal([]byte(files["index.json"].PAXRecords["content"]), &index); err != nil {
			t.Fatal(err)
		}
		manifest := index.Manifests[0]
		if got, want := manifest.Annotations["io.containerd.image.name"], "localhost/frond/"+name+":dev"; got != want {
			t.Errorf("%s: the index names %q, want %q", name, got, want)
		}
		if blob := files["blobs/sha256/"+manifest.Digest.Hex]; blob == nil || blob.Size != manifest.Size {
			t.Errorf("%s: the manifest that the index names is not in the tar", name)
		}
	}
}

func TestToolsImageHasALinkForEachProgram(t *testing.T) {
	dir := built(t)
	list, err := exec.CommandContext(t.Context(), filepath.Join(dir, "tools"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(list))
	for _, want := range []string{"sh", "cat", "sleep", "wget", "test", "["} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s among %v", want, names)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "images"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("images: %v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "tools.tar"))
	if err != nil {
		t.Fatal(err)
	}
	var layer []byte
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		if h.Size > 1<<20 {
			if layer, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := entries(t, layer)
	for _, name := range names {
		if link := files["bin/"+name]; link == nil || link.Linkname != "tools" {
			t.Errorf("bin/%s is no link to tools", name)
		}
	}
	if tmp := files["tmp/"]; tmp == nil || tmp.Mode != 0o1777 {
		t.Error("no tmp/ that everybody may write")
	}
}
