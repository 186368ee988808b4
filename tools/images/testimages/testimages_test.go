package main

import (
	"archive/tar"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestMerged(t *testing.T) {
	for in, want := range map[string]string{
		"./bin/sh": "usr/bin/sh", "./lib64": "usr/lib64", "./usr/bin/curl": "usr/bin/curl", "./etc/os-release": "etc/os-release", "./": ".",
	} {
		if got := merged(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// Upstream's tests start /bin/sh in busybox and call agnhost by the names below.
func TestImages_HaveWhatTestsCall(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "../tools", "../pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	pause := filepath.Join(dir, "pause")
	if err := push(t.Context(), address, sources{agnhost: pause, pause: pause, tools: filepath.Join(dir, "tools"), sampleAPIServer: pause, etcd: pause}); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string][]string{
		"e2e-test-images/busybox:1.37.0-2":        {"bin -> usr/bin", "usr/bin/sh -> tools"},
		"e2e-test-images/agnhost:2.66.1":          {"agnhost", "agnhost-2 -> agnhost", "localhost.crt", "etc/group"},
		"e2e-test-images/sample-apiserver:1.29.2": {"sample-apiserver"},
		"etcd:3.7.0-0":               {"usr/local/bin/etcd"},
		"e2e-test-images/kitten:1.8": {"agnhost", "data.json", "etc/os-release"},
	} {
		have := files(t, address+"/"+image)
		for _, f := range want {
			if !have[f] {
				t.Errorf("%s has no %s", image, f)
			}
		}
	}
}

func files(t *testing.T, image string) map[string]bool {
	t.Helper()
	ref, err := name.NewTag(image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := pulled.Layers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, l := range layers {
		content, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(content); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := h.Name
			if h.Typeflag == tar.TypeSymlink {
				name += " -> " + h.Linkname
			}
			found[name] = true
		}
		_ = content.Close()
	}
	return found
}
