package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// writePrograms writes files in place of the programs of an architecture.
func writePrograms(t *testing.T, architecture string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"cloudcore", "frond", "nats-server"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(program+" for "+architecture), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReleaseImages_ReproducibleForEachArchitecture(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	amd64, arm64 := writePrograms(t, "amd64"), writePrograms(t, "arm64")
	var first [2]string
	var archives [2][]byte
	for round := range 2 {
		dir := t.TempDir()
		var out, faults bytes.Buffer
		args := []string{"-release", dir, "-version", "v1.2.3", "-programs", "arm64=" + arm64, "-programs", "amd64=" + amd64, "-push", host + "/frond"}
		if code := run(args, &out, &faults); code != 0 {
			t.Fatalf("exit code %d: %s", code, &faults)
		}
		content, err := os.ReadFile(filepath.Join(dir, "cloudcore.tar"))
		if err != nil {
			t.Fatal(err)
		}
		first[round], archives[round] = out.String(), content
	}
	if first[0] != first[1] || !bytes.Equal(archives[0], archives[1]) {
		t.Errorf("two runs differ:\n%s%s", first[0], first[1])
	}
	lines := strings.Split(strings.TrimSpace(first[0]), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], host+"/frond/cloudcore:v1.2.3 sha256:") || !strings.HasPrefix(lines[1], host+"/frond/hub:v1.2.3 sha256:") {
		t.Fatalf("printed %q", lines)
	}
	for image, programs := range map[string][]string{"cloudcore": {"usr/bin/cloudcore", "usr/bin/frond"}, "hub": {"usr/bin/nats-server"}} {
		for _, architecture := range []string{"amd64", "arm64"} {
			built := pullRelease(t, host+"/frond/"+image+":v1.2.3", architecture)
			wantFiles(t, image, built, append(programs, "tmp/", "etc/passwd"))
			config, err := built.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Architecture != architecture || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/"+programs[0] {
				t.Errorf("%s for %s: %+v", image, architecture, config)
			}
		}
	}
}

func pullRelease(t *testing.T, reference, architecture string) v1.Image {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	built, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
	if err != nil {
		t.Fatal(err)
	}
	return built
}

func TestReleaseImages_BadRequests(t *testing.T) {
	dir := writePrograms(t, "amd64")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-programs", "amd64=" + dir}, "-version"},
		{[]string{"-version", "v1"}, "-programs"},
		{[]string{"-version", "v1", "-programs", dir}, "ARCHITECTURE=DIR"},
		{[]string{"-version", "v1", "-programs", "amd64=" + dir, "-programs", "amd64=" + dir}, "two folders for amd64"},
		{[]string{"-version", "v1", "-programs", "amd64=" + t.TempDir()}, "cloudcore"},
		{[]string{"-version", "not a tag", "-programs", "amd64=" + dir, "-push", "127.0.0.1:1/frond"}, "name the image"},
	} {
		var out, faults bytes.Buffer
		if code := run(append([]string{"-release", t.TempDir()}, test.args...), &out, &faults); code == 0 || !strings.Contains(faults.String(), test.want) {
			t.Errorf("%q: exit code %d, %s; want %q", test.args, code, &faults, test.want)
		}
	}
}
