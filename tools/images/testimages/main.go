// Command testimages is a container registry that holds stand-ins for the images of Kubernetes' end-to-end tests.
//
//	testimages -listen 127.0.0.1:5000 -blobs DIR -agnhost FILE -pause FILE -packages DIR
//
// agnhost is upstream's program, compiled from its module, as -sample-apiserver and -etcd are. The programs that tests call in shells (bash, coreutils, curl, dig, …) are
// packages of Debian, which apt-get downloads into DIR once; where that is not wanted, -tools names Frond's own small programs instead.
// The registry is meant to be a containerd mirror of registry.k8s.io: images have the names and tags that upstream's have. It ends on
// SIGINT or SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var src sources
	flags := flag.NewFlagSet("testimages", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:5000", "address to listen on")
	flags.StringVar(&src.agnhost, "agnhost", "", "upstream's agnhost")
	flags.StringVar(&src.pause, "pause", "", "the program pause")
	flags.StringVar(&src.packages, "packages", "", "folder for Debian packages, downloaded if it is empty")
	flags.StringVar(&src.sampleAPIServer, "sample-apiserver", "", "upstream's aggregated API for tests; empty: its image and that of etcd are left out")
	flags.StringVar(&src.etcd, "etcd", "", "a program that is etcd under that name")
	flags.StringVar(&src.tools, "tools", "", "the program tools, instead of packages")
	blobs := flags.String("blobs", "", "folder for what images are made of; it is made if need be")
	fetch := flags.Bool("fetch", false, "download the packages and end")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *fetch {
		err = fetchPackages(ctx, src.packages)
	} else {
		err = serve(ctx, *listen, *blobs, src, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "testimages:", err)
		return 1
	}
	return 0
}

// serve fills a registry with all images and says so when they can be pulled.
func serve(ctx context.Context, listen, blobs string, src sources, out io.Writer) error {
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return fmt.Errorf("make the folder of blobs: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	const headers = 10 * time.Second // clients are containerd on this machine
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headers}
	ended := make(chan error, 1) // one result
	go func() { ended <- server.Serve(listener) }()
	if err := push(ctx, listener.Addr().String(), src); err != nil {
		_ = server.Close()
		return errors.Join(err, closed(<-ended))
	}
	debug.FreeOSMemory() // the images were in memory while they were made
	fmt.Fprintln(out, "serving test images at", listener.Addr())
	select {
	case <-ctx.Done():
		_ = server.Close()
		return closed(<-ended)
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	}
}

// closed leaves out the error that tells of a server that was closed.
func closed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func push(ctx context.Context, registry string, src sources) error {
	list, err := images(ctx, src)
	if err != nil {
		return err
	}
	for _, img := range list {
		ref, err := name.NewTag(registry+"/"+img.name, name.Insecure)
		if err != nil {
			return fmt.Errorf("name %s: %w", img.name, err)
		}
		built, err := img.build()
		if err != nil {
			return fmt.Errorf("build %s: %w", img.name, err)
		}
		if err := remote.Write(ref, built, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("store %s: %w", img.name, err)
		}
	}
	return nil
}
