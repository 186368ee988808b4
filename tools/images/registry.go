package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// serveTestImages fills a registry with all test images and says so when they can be pulled.
func serveTestImages(ctx context.Context, listen, blobs string, src sources, out io.Writer) error {
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
	if err := pushTestImages(ctx, listener.Addr().String(), src); err != nil {
		_ = server.Close()
		return errors.Join(err, ignoreClosed(<-ended))
	}
	debug.FreeOSMemory() // the images were in memory while they were made
	fmt.Fprintln(out, "serving test images at", listener.Addr())
	select {
	case <-ctx.Done():
		_ = server.Close()
		return ignoreClosed(<-ended)
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	}
}

// ignoreClosed leaves out the error of a server that was closed.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func pushTestImages(ctx context.Context, registry string, src sources) error {
	list, err := testImages(ctx, src)
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
