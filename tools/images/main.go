// Command images makes the container images of Frond, of the development cluster and of Kubernetes' end-to-end tests.
//
//	images                                                writes pause.tar, tools.tar and http.tar for `ctr images import`
//	images -fetch -packages DIR                           downloads the Debian packages of the test images
//	images -listen 127.0.0.1:5000 -blobs DIR -agnhost FILE [-packages DIR] [-sample-apiserver FILE -etcd FILE]
//
//	images -release DIR -version V -programs amd64=DIR [-programs arm64=DIR] [-push REGISTRY/PREFIX]
//
// The programs pause, http and busybox lie beside this one, where the tars are written too. No registry and no base image is involved, and the
// same programs give the same tars: fixed times, fixed order.
//
// With -release it writes cloudcore.tar and hub.tar, OCI archives with an image for each architecture, and prints their digests. The folders of
// programs hold cloudcore, frond and nats-server for it. -push also sends the images to a registry, with the credentials of the
// Docker client's configuration.
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
	release := release{programs: map[string]string{}}
	flags.StringVar(&release.dir, "release", "", "folder for the images of Frond")
	flags.StringVar(&release.version, "version", "", "tag of the images of Frond")
	flags.StringVar(&release.push, "push", "", "registry and prefix to send the images of Frond to, such as registry.example.com/frond")
	flags.Func("programs", "ARCHITECTURE=DIR: the programs of Frond for an architecture; may be repeated", release.addPrograms)
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
		case release.dir != "":
			err = release.write(ctx, stdout)
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
