// Command images makes the container images of the development cluster and of Kubernetes' end-to-end tests.
//
//	images                                                writes pause.tar, tools.tar and http.tar for `ctr images import`
//	images -fetch -packages DIR                           downloads the Debian packages of the test images
//	images -listen 127.0.0.1:5000 -blobs DIR -agnhost FILE [-packages DIR] [-sample-apiserver FILE -etcd FILE]
//
// The programs pause, http and busybox lie beside this one, where the tars are written too. No registry and no base image is involved, and the
// same programs give the same tars: fixed times, fixed order.
//
// With -listen it is a registry that replaces registry.k8s.io: images have the names and tags that upstream's have. agnhost is upstream's program,
// compiled from its module, as -sample-apiserver and -etcd are. The programs that tests call in shells (bash, coreutils, curl, dig, …) are Debian
// packages, and those of busybox otherwise. It ends on SIGINT or SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var src sources
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "", "serve the test images at this address; empty: write the images of the development cluster")
	flags.StringVar(&src.agnhost, "agnhost", "", "upstream's agnhost")
	flags.StringVar(&src.packages, "packages", "", "folder of Debian packages; empty: the test images have only the programs of busybox")
	flags.StringVar(&src.sampleAPIServer, "sample-apiserver", "", "upstream's aggregated API for tests; empty: its image and that of etcd are left out")
	flags.StringVar(&src.etcd, "etcd", "", "a program that is etcd under that name")
	blobs := flags.String("blobs", "", "folder for the layers; it is created if it is missing")
	fetch := flags.Bool("fetch", false, "download the packages and end")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	self, err := os.Executable()
	if src.programs = filepath.Dir(self); err == nil {
		switch {
		case *fetch:
			err = fetchPackages(ctx, src.packages)
		case *listen != "":
			err = serveTestImages(ctx, *listen, *blobs, src, stdout)
		default:
			err = writeClusterImages(ctx, src)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "images:", err)
		return 1
	}
	return 0
}
