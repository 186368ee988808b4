package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// buildPrograms compiles the module's programs as internal/toolchain does. In place of busybox there is a script that lists applets.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir+"/", ".", "./pause", "./http")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "busybox"), []byte("#!/bin/sh\necho '[' busybox cat sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestClusterImages_ReproducibleAndNamed(t *testing.T) {
	dir := buildPrograms(t)
	for round, first := 0, map[string][]byte{}; round < 2; round++ {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "images")).CombinedOutput(); err != nil {
			t.Fatalf("images: %v\n%s", err, out)
		}
		for _, image := range []string{"pause", "tools", "http"} {
			content, err := os.ReadFile(filepath.Join(dir, image+".tar"))
			if err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				first[image] = content
			} else if !bytes.Equal(first[image], content) {
				t.Errorf("%s: two runs differ", image)
			}
		}
	}
	for image, want := range map[string][]string{
		"pause": {"usr/bin/pause", "tmp/", "etc/passwd"},
		"http":  {"usr/bin/http", "tmp/", "etc/passwd"},
		"tools": {"usr/bin/busybox", "usr/bin/[ -> busybox", "usr/bin/cat -> busybox", "usr/bin/sh -> busybox", "bin -> usr/bin", "tmp/"},
	} {
		tag, err := name.NewTag("localhost/frond/" + image + ":dev")
		if err != nil {
			t.Fatal(err)
		}
		built, err := tarball.ImageFromPath(filepath.Join(dir, image+".tar"), &tag)
		if err != nil {
			t.Fatal(err)
		}
		wantFiles(t, image, built, want)
	}
}
