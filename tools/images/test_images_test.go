package main

import (
	"archive/tar"
	"errors"
	"io"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestMergeUsr(t *testing.T) {
	for in, want := range map[string]string{
		"./bin/sh": "usr/bin/sh", "./lib64": "usr/lib64", "./usr/bin/curl": "usr/bin/curl", "./etc/os-release": "etc/os-release", "./": ".",
	} {
		if got := mergeUsr(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// Upstream's tests start /bin/sh in busybox and call agnhost by the names below.
func TestImages_HaveWhatTestsCall(t *testing.T) {
	dir := buildPrograms(t)
	server := httptest.NewServer(registry.New())
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	pause := filepath.Join(dir, "pause")
	if err := pushTestImages(t.Context(), address, sources{programs: dir, agnhost: pause, sampleAPIServer: pause, etcd: pause}); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string][]string{
		"e2e-test-images/busybox:1.37.0-2":        {"bin -> usr/bin", "usr/bin/sh -> busybox"},
		"e2e-test-images/agnhost:2.66.1":          {"agnhost", "agnhost-2 -> agnhost", "localhost.crt", "etc/group"},
		"e2e-test-images/sample-apiserver:1.29.2": {"sample-apiserver"},
		"etcd:3.7.0-0":               {"usr/local/bin/etcd"},
		"e2e-test-images/kitten:1.8": {"agnhost", "data.json", "etc/os-release"},
	} {
		ref, err := name.NewTag(address+"/"+image, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(ref, remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		wantFiles(t, image, pulled, want)
	}
}

func wantFiles(t *testing.T, name string, image v1.Image, want []string) {
	t.Helper()
	layers, err := image.Layers()
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
	for _, f := range want {
		if !found[f] {
			t.Errorf("%s has no %s", name, f)
		}
	}
}
