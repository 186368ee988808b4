package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const e2e = "e2e-test-images/"

// testImages returns the replacements for the images of upstream's list, test/utils/image/manifest.go of the version that tools/conformance/suite
// requires.
func testImages(ctx context.Context, src sources) ([]image, error) {
	base, err := src.baseLayer(ctx)
	if err != nil {
		return nil, err
	}
	certificate, err := issueCertificate()
	if err != nil {
		return nil, err
	}
	agnhost, err := layerOf(append(append(agnhostFiles(), certificate...), file{name: "agnhost", from: src.agnhost, mode: 0o755}))
	if err != nil {
		return nil, err
	}
	pause, err := layerOf([]file{{name: "pause", from: src.program("pause").from, mode: 0o755}})
	if err != nil {
		return nil, err
	}
	site, err := layerOf([]file{{name: "usr/share/nginx/html/index.html", text: "<h1>Welcome to nginx!</h1>\n", mode: 0o644}})
	if err != nil {
		return nil, err
	}
	setuid, err := layerOf([]file{{name: "usr/local/bin/nnp", from: src.agnhost, mode: 0o4755}})
	if err != nil {
		return nil, err
	}
	shell := v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}}
	full := []v1.Layer{base, agnhost}
	test := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{searchPath}}
	nginx := v1.Config{Cmd: []string{"busybox", "httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html"}, Env: []string{searchPath}}
	list := []image{
		{name: "pause:3.10.2", layers: []v1.Layer{pause}, config: v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}},
		{name: e2e + "agnhost:2.66.1", layers: full, config: test},
		{name: e2e + "agnhost:2.55", layers: full, config: test},
		{name: e2e + "busybox:1.37.0-2", layers: []v1.Layer{base}, config: shell},
		{name: e2e + "perl:5.26", layers: []v1.Layer{base}, config: shell},
		{name: e2e + "glibc-dns-testing:2.1.1", layers: []v1.Layer{base}, config: shell},
		{name: e2e + "ipc-utils:1.4", layers: []v1.Layer{base}, config: shell},
		{name: e2e + "nginx:1.27.0-2", layers: []v1.Layer{base, site}, config: nginx},
		{name: e2e + "nginx:1.28.0-2", layers: []v1.Layer{base, site}, config: nginx},
		{name: e2e + "nonewprivs:1.4", layers: []v1.Layer{base, setuid}, config: v1.Config{Cmd: []string{"/usr/local/bin/nnp", "nonewprivs"}, Env: []string{searchPath}}},
		{name: e2e + "nonroot:1.5", layers: []v1.Layer{base}, config: v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}, User: "1234"}},
	}
	for _, pet := range []string{"kitten", "nautilus"} {
		data, err := layerOf([]file{
			{name: "data.json", text: `{"image":"` + pet + `.jpg"}` + "\n", mode: 0o644},
			{name: "etc/os-release", text: "NAME=\"a stand-in for an image of Alpine Linux\"\n", mode: 0o644}, // a test of image volumes reads it
		})
		if err != nil {
			return nil, err
		}
		list = append(list, image{
			name: e2e + pet + ":1.8", layers: append(full[:2:2], data),
			config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}, Env: []string{searchPath}},
		})
	}
	aggregated, err := aggregatedImages(src)
	if err != nil {
		return nil, err
	}
	return append(list, aggregated...), nil
}

// aggregatedImages are an aggregated API and its store, where their programs are named.
func aggregatedImages(src sources) ([]image, error) {
	if src.sampleAPIServer == "" {
		return nil, nil
	}
	server, err := layerOf([]file{{name: "sample-apiserver", from: src.sampleAPIServer, mode: 0o755}, {name: "tmp", dir: true, mode: 0o1777}})
	if err != nil {
		return nil, err
	}
	etcd, err := layerOf([]file{{name: "usr/local/bin/etcd", from: src.etcd, mode: 0o755}, {name: "tmp", dir: true, mode: 0o1777}})
	if err != nil {
		return nil, err
	}
	return []image{
		{name: e2e + "sample-apiserver:1.29.2", layers: []v1.Layer{server}, config: v1.Config{Entrypoint: []string{"/sample-apiserver"}, Env: []string{searchPath}}},
		{name: "etcd:3.7.0-0", layers: []v1.Layer{etcd}, config: v1.Config{Entrypoint: []string{"etcd"}, Env: []string{searchPath}}},
	}, nil
}

// agnhostFiles are what tests expect of this image beside its program.
func agnhostFiles() []file {
	return []file{
		{name: "agnhost-2", link: "agnhost"}, // tests that override the entry point tell it by this name
		{name: "uploads", dir: true, mode: 0o755},
		{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n" +
			"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, text: "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n" +
			"group-defined-in-image:x:50000:user-defined-in-image\n"},
	}
}

// issueCertificate returns the self-signed certificate that agnhost's servers show, and a file that tests move away to make a pod unready.
func issueCertificate() ([]file, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make agnhost's key: %w", err)
	}
	const life = 10 * 365 * 24 * time.Hour // longer than a cluster of tests
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: epoch(), NotAfter: time.Now().Add(life)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make agnhost's certificate: %w", err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make agnhost's key: %w", err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return []file{
		{name: "localhost.crt", text: block("CERTIFICATE", certificate), mode: 0o644},
		{name: "localhost.key", text: block("EC PRIVATE KEY", encoded), mode: 0o644},
	}, nil
}
