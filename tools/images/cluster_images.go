package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// clusterImages returns the images of the development cluster.
func clusterImages(ctx context.Context, src sources) ([]image, error) {
	busybox, err := src.busyboxFiles(ctx)
	if err != nil {
		return nil, err
	}
	list := []image{
		{name: "pause", config: v1.Config{Entrypoint: []string{"/bin/pause"}, User: "65535:65535"}}, // upstream's pause runs as this user
		{name: "tools", config: v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}}},
		{name: "http", config: v1.Config{
			Entrypoint: []string{"/bin/http"}, Env: []string{searchPath}, User: "65532:65532", ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		}},
	}
	for i, files := range [][]file{{src.program("pause")}, busybox, {src.program("http")}} {
		layer, err := layerOf(append(systemFiles(), files...))
		if err != nil {
			return nil, err
		}
		list[i].layers = []v1.Layer{layer}
	}
	return list, nil
}

// writeClusterImages writes each image as a tar, which names it for containerd, into the folder of the programs.
func writeClusterImages(ctx context.Context, src sources) error {
	list, err := clusterImages(ctx, src)
	if err != nil {
		return err
	}
	for _, img := range list {
		tag, err := name.NewTag("localhost/frond/" + img.name + ":dev")
		if err != nil {
			return fmt.Errorf("name %s: %w", img.name, err)
		}
		built, err := img.build()
		if err != nil {
			return fmt.Errorf("build %s: %w", img.name, err)
		}
		if err := tarball.WriteToFile(filepath.Join(src.programs, img.name+".tar"), tag, built); err != nil {
			return fmt.Errorf("write %s: %w", img.name, err)
		}
	}
	return nil
}

// program returns one of the programs beside this one as a file of /usr/bin.
func (s sources) program(name string) file {
	return file{name: "usr/bin/" + name, from: filepath.Join(s.programs, name), mode: 0o755}
}

// busyboxFiles returns busybox, and a link for each of its applets.
func (s sources) busyboxFiles(ctx context.Context) ([]file, error) {
	busybox := s.program("busybox")
	list, err := exec.CommandContext(ctx, busybox.from, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	files := []file{busybox}
	for applet := range strings.FieldsSeq(string(list)) {
		files = append(files, file{name: "usr/bin/" + applet, link: "busybox"})
	}
	return files, nil
}
