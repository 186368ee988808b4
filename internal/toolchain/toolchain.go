package toolchain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/toolchain/cache"
	"github.com/frond-edge/frond/internal/toolchain/progress"
)

// Request selects the programs that the caller needs.
type Request struct {
	Kube bool // etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kubelet, kube-proxy, metrics-server
	// ControlPlane is the minor version, such as "1.36", of an older control plane in addition to Kube; tools/kube must have it.
	ControlPlane string
	Node         bool // containerd, shim, ctr, runc, CNI plugins, images
	Nats         bool // nats-server
	DNS          bool // CoreDNS
	Frond        bool // cloudcore, edgecore, frond, from the present state of the tree
	Helm         bool // helm, which installs deploy/chart
	// Conformance selects Kubernetes' end-to-end tests and the programs that they need beside a cluster.
	Conformance bool
	// Machines selects systemd, which apt-get installs where it is missing and that is permitted; nothing is built.
	Machines bool

	// Tree is Frond's source tree. Empty: $FROND_SOURCE, else the working folder or the first source tree above it.
	Tree string
	// Cache is where results are kept. Empty: $FROND_CACHE, else "frond" in the user's cache folder.
	Cache string
}

// Paths are absolute. Those of programs that were not requested are empty.
type Paths struct {
	Kube string // the multi-call program; links with the six names lie beside it (KUBEBUILDER_ASSETS)
	// ControlPlane is the folder of an older kube-apiserver, kube-controller-manager and kube-scheduler.
	ControlPlane string
	Containerd   string
	Shim         string // containerd-shim-runc-v2
	Ctr          string
	Runc         string
	CNIDir       string // bridge, host-local, loopback, portmap and others
	NatsServer   string
	CoreDNS      string
	Cloudcore    string
	Edgecore     string
	Frond        string
	Helm         string
	E2E          string // Kubernetes' end-to-end tests (tools/conformance/suite)
	Ginkgo       string // runs them in parallel
	Agnhost      string // the program of most test images
	// SampleAPIServer is upstream's aggregated API for tests.
	SampleAPIServer string
	TestImages      string   // a registry of test images (tools/images), also where only Node was requested
	Images          []string // tars for `ctr images import`: ImagePause, ImageTools, ImageHTTP
}

// Names of the images in Paths.Images. Use them with imagePullPolicy IfNotPresent or Never: they are in no registry.
const (
	ImagePause = "localhost/frond/pause:dev"
	ImageTools = "localhost/frond/tools:dev"
	ImageHTTP  = "localhost/frond/http:dev"
)

// Ensure returns the paths of all requested programs, and builds missing ones. Progress and notices go to out, which
// may be a terminal. It is safe to call from several processes at once. When ctx ends it stops the compilers and
// returns an error; the next call continues from their results.
func Ensure(ctx context.Context, req Request, out io.Writer) (Paths, error) {
	b, err := newBuilder(req, out)
	if err != nil {
		return Paths{}, fmt.Errorf("toolchain: %w", err)
	}
	paths, err := b.ensureAll(ctx, req)
	if err != nil {
		return Paths{}, fmt.Errorf("toolchain: %w", err)
	}
	return paths, nil
}

// ErrMissing reports that something is not in the cache.
var ErrMissing = errors.New("not built yet")

// Find returns the paths of all requested programs, or ErrMissing. It builds nothing and is quick, so a test may call it.
func Find(ctx context.Context, req Request) (Paths, error) {
	b, err := newBuilder(req, io.Discard)
	if err != nil {
		return Paths{}, fmt.Errorf("toolchain: %w", err)
	}
	entries, missing, err := b.findEntries(ctx, req)
	if err != nil {
		return Paths{}, fmt.Errorf("toolchain: %w", err)
	}
	if len(missing) > 0 {
		return Paths{}, fmt.Errorf("toolchain: %s: %w", missing[0].name, ErrMissing)
	}
	return pathsOf(entries), nil
}

// A builder finds and makes entries of the cache.
type builder struct {
	tree     string
	cache    cache.Cache
	packages packageInstaller
	out      io.Writer
}

func newBuilder(req Request, out io.Writer) (*builder, error) {
	tree, err := findTree(req.Tree)
	if err != nil {
		return nil, err
	}
	dir, err := cacheDir(req.Cache)
	if err != nil {
		return nil, err
	}
	return &builder{tree: tree, cache: cache.Cache{Dir: dir}, packages: packageInstaller{out}, out: out}, nil
}

func (b *builder) ensureAll(ctx context.Context, req Request) (Paths, error) {
	entries, missing, err := b.findEntries(ctx, req)
	if err != nil {
		return Paths{}, err
	}
	if len(missing) > 0 {
		built, err := b.buildJobs(ctx, missing)
		if err != nil {
			return Paths{}, err
		}
		maps.Copy(entries, built)
	}
	if req.Node {
		b.packages.installWanted(ctx, nodePackages())
	}
	if req.Machines {
		b.packages.installWanted(ctx, machinePackages())
	}
	return pathsOf(entries), nil
}

// findEntries returns the requested results in the cache, by recipe name, and the jobs that must be built.
func (b *builder) findEntries(ctx context.Context, req Request) (entries map[string]string, missing []job, err error) {
	if req.ControlPlane != "" {
		if _, err := os.Stat(filepath.Join(b.tree, "tools/kube", req.ControlPlane, "go.mod")); err != nil {
			return nil, nil, fmt.Errorf("build a control plane of Kubernetes %s: %w: the folders of tools/kube name the versions there are", req.ControlPlane, err)
		}
	}
	entries = map[string]string{}
	for _, r := range req.recipes() {
		j, err := newJob(ctx, b.tree, b.cache, r)
		if err != nil {
			return nil, nil, err
		}
		if b.cache.TouchEntry(j.entry) {
			entries[r.name] = j.entry
			continue
		}
		missing = append(missing, j)
	}
	return entries, missing, nil
}

// buildJobs takes the locks of all jobs in order, so two processes cannot wait for each other, and checks the cache again: the
// process that held a lock before may have built the same.
func (b *builder) buildJobs(ctx context.Context, jobs []job) (map[string]string, error) {
	entries := map[string]string{}
	var todo []job
	for _, j := range jobs {
		unlock, err := b.cache.Lock(ctx, j.name, b.out)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if j.busybox {
			if err := b.packages.ensureBusybox(ctx, b.cache); err != nil {
				return nil, err
			}
			if j, err = newJob(ctx, b.tree, b.cache, j.recipe); err != nil { // its key contains the digest of busybox
				return nil, err
			}
		}
		if b.cache.TouchEntry(j.entry) {
			entries[j.name] = j.entry
			continue
		}
		if j.cgo {
			if err := b.packages.ensureCCompiler(ctx); err != nil {
				return nil, err
			}
		}
		todo = append(todo, j)
	}
	if len(todo) == 0 {
		return entries, nil
	}
	if err := b.compileAll(ctx, todo); err != nil {
		return nil, err
	}
	for _, j := range todo {
		entries[j.name] = j.entry
	}
	return entries, nil
}

func (b *builder) compileAll(ctx context.Context, jobs []job) error {
	began := time.Now()
	m := progress.NewMeter()
	show := progress.NewDisplay(ctx, b.out, m)
	defer show.Close()
	for i := range jobs {
		show.PrintNote("looking at what " + jobs[i].name + " needs")
		if err := jobs[i].estimate(ctx, show); err != nil {
			return err
		}
	}
	warnOfSpace(ctx, jobs[0].module, m.Total, b.out)
	show.Start(b.cache.Dir)
	for i := range jobs {
		if err := b.makeEntry(ctx, &jobs[i], show); err != nil {
			return err
		}
	}
	show.Finish(time.Since(began))
	return nil
}

// makeEntry builds one job and installs it. If the sources changed during the build, the result belongs to no
// known state, so it is built again, and j becomes the job of the changed sources; Go's cache makes that cheap.
func (b *builder) makeEntry(ctx context.Context, j *job, show *progress.Display) error {
	const attempts = 3 // an editor may save during a build; a tree that changes all the time is an error
	for range attempts {
		temp, err := b.cache.MakeTemp(j.name)
		if err != nil {
			return err
		}
		if err := j.compile(ctx, temp, show); err != nil {
			b.cache.DiscardTemp(temp)
			return err
		}
		again, err := newJob(ctx, b.tree, b.cache, j.recipe)
		if err != nil {
			return err
		}
		if again.entry == j.entry {
			if err := b.cache.InstallEntry(temp, j.entry, j.keySource); err != nil {
				return err
			}
			b.cache.Prune(j.name, j.keep, j.entry)
			return nil
		}
		b.cache.DiscardTemp(temp)
		j.entry, j.keySource = again.entry, again.keySource
		show.PrintNote("sources of " + j.name + " changed meanwhile, building again")
	}
	return fmt.Errorf("build %s: its sources changed during each of %d builds", j.name, attempts)
}

func pathsOf(entries map[string]string) Paths {
	file := func(entry, name string) string {
		if dir, ok := entries[entry]; ok {
			return filepath.Join(dir, name)
		}
		return ""
	}
	p := Paths{
		Kube:            file(nameKube, "kube"),
		Containerd:      file(nameContainerd, "containerd"),
		Shim:            file(nameContainerd, "containerd-shim-runc-v2"),
		Ctr:             file(nameContainerd, "ctr"),
		Runc:            file(nameRunc, "runc"),
		CNIDir:          file(nameCNI, ""),
		NatsServer:      file(nameNats, "nats-server"),
		CoreDNS:         file(nameCoreDNS, "coredns"),
		Cloudcore:       file(nameFrond, "cloudcore"),
		Edgecore:        file(nameFrond, "edgecore"),
		Frond:           file(nameFrond, "frond"),
		Helm:            file(nameHelm, "helm"),
		E2E:             file(nameSuite, "e2e"),
		Ginkgo:          file(nameSuite, "ginkgo"),
		Agnhost:         file(nameSuite, "agnhost"),
		SampleAPIServer: file(nameSuite, "sample-apiserver"),
		TestImages:      file(nameImages, "images"),
	}
	for name, dir := range entries {
		switch {
		case strings.HasPrefix(name, nameKube+"1."):
			p.ControlPlane = dir
		case name == nameImages:
			p.Images = []string{filepath.Join(dir, "pause.tar"), filepath.Join(dir, "tools.tar"), filepath.Join(dir, "http.tar")}
		}
	}
	return p
}
