package toolchain

import "strings"

// Names of the recipes; each is the first part of a folder name in the cache.
const (
	nameKube       = "kube"
	nameContainerd = "containerd"
	nameRunc       = "runc"
	nameCNI        = "cni"
	nameImages     = "images"
	nameCoreDNS    = "coredns"
	nameNats       = "nats"
	nameFrond      = "frond"
	nameSuite      = "conformance"
	nameHelm       = "helm"
)

const (
	// The version is pinned by go.mod; it is stamped into the program, which does not carry its own.
	containerdVersion = "v2.4.2"

	stripped = "-s -w"
)

// A recipe describes one folder of the cache: the packages, the flags, and the inputs of its result.
type recipe struct {
	name     string
	module   string   // folder of the Go module, relative to the tree
	inputs   []string // files and folders that go into the key, relative to the tree, without nested modules; nil: the module
	outside  []string // folders below inputs that no program imports, relative to the tree
	packages []string
	ldflags  string   // in addition to stripped
	stamps   []string // versions that the linker adds: stampKube, stampFrond
	tags     string
	cgo      bool
	keep     int               // folders of this name to keep, the one in use included
	links    map[string]string // symlink → target, made after the build
	busybox  bool              // Debian's busybox is put beside the programs
	write    string            // program of this build that is run at the end and writes more files beside itself
}

// recipes returns what the request selects, in the order in which the locks are taken.
func (req Request) recipes() []recipe {
	var all []recipe
	for _, group := range []struct {
		wanted  bool
		recipes []recipe
	}{
		{req.Kube, []recipe{kubeRecipe()}},
		{req.ControlPlane != "", []recipe{controlPlaneRecipe(req.ControlPlane)}},
		{req.Node, []recipe{containerdRecipe(), runcRecipe(), cniRecipe()}},
		{req.Node || req.Conformance, []recipe{imagesRecipe()}},
		{req.Nats, []recipe{natsRecipe()}},
		{req.DNS, []recipe{corednsRecipe()}},
		{req.Frond, []recipe{frondRecipe()}},
		{req.Helm, []recipe{helmRecipe()}},
		{req.Conformance, []recipe{suiteRecipe()}},
	} {
		if group.wanted {
			all = append(all, group.recipes...)
		}
	}
	return all
}

// linkerFlags returns the flags without the stamps.
func (r recipe) linkerFlags() string { return strings.TrimSpace(stripped + " " + r.ldflags) }

// buildEnv returns the part of the go command's environment that decides what is built. The flags are those of the
// Makefile: other flags would fill Go's cache a second time and compile Kubernetes twice.
func (r recipe) buildEnv() []string {
	cgo := "CGO_ENABLED=0"
	if r.cgo {
		cgo = "CGO_ENABLED=1"
	}
	return []string{cgo, "GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace", "GOWORK=off"}
}

func kubeRecipe() recipe {
	links := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy", "metrics-server"} {
		links[name] = "kube"
	}
	return recipe{
		name: nameKube, module: "tools/kube", packages: []string{"."}, stamps: []string{stampKube}, keep: 2, links: links, // 150 MB each
	}
}

// controlPlaneRecipe builds kube-apiserver, kube-controller-manager and kube-scheduler of an older minor version.
func controlPlaneRecipe(minor string) recipe {
	return recipe{
		name: nameKube + minor, module: "tools/kube/" + minor, packages: []string{"."}, stamps: []string{stampKube}, keep: 2,
		links: map[string]string{"kube-apiserver": minor, "kube-controller-manager": minor, "kube-scheduler": minor}, // a module's program has the name of its folder
	}
}

func containerdRecipe() recipe {
	const upstream = "github.com/containerd/containerd/v2"
	return recipe{
		name: nameContainerd, module: "tools/node/containerd", keep: 3,
		packages: []string{upstream + "/cmd/containerd", upstream + "/cmd/containerd-shim-runc-v2", upstream + "/cmd/ctr"},
		ldflags:  "-X " + upstream + "/version.Version=" + containerdVersion,
	}
}

// runcRecipe links statically, so the result runs without libseccomp2 and after a change of the C library. runc
// enters the namespaces in C, so it cannot be built without cgo. It needs seccomp: the kubelet starts the sandbox of
// every pod under the profile RuntimeDefault, and containerd passes that to runc whenever the kernel supports seccomp.
func runcRecipe() recipe {
	return recipe{
		name: nameRunc, module: "tools/node/runc", keep: 3, cgo: true,
		packages: []string{"github.com/opencontainers/runc"},
		ldflags:  "-linkmode external -extldflags -static",
		tags:     "netgo,osusergo,seccomp,urfave_cli_no_docs",
	}
}

func cniRecipe() recipe {
	r := recipe{name: nameCNI, module: "tools/node/cni", keep: 3}
	for _, plugin := range []string{
		"ipam/host-local", "main/bridge", "main/loopback", "main/ptp",
		"meta/bandwidth", "meta/firewall", "meta/portmap", "meta/tuning",
	} {
		r.packages = append(r.packages, "github.com/containernetworking/plugins/plugins/"+plugin)
	}
	return r
}

// imagesRecipe makes the images of the development cluster, and the registry of test images.
func imagesRecipe() recipe {
	return recipe{
		name: nameImages, module: "tools/images", packages: []string{".", "./pause", "./http"}, keep: 3,
		busybox: true, write: "images",
	}
}

// corednsRecipe builds the DNS server of gateways' pods.
func corednsRecipe() recipe {
	return recipe{name: nameCoreDNS, module: "tools/coredns", packages: []string{"."}, keep: 3}
}

// suiteRecipe shares most compiled packages with kubeRecipe: the go.mod of both require the same versions, which a test checks.
func suiteRecipe() recipe {
	return recipe{
		name: nameSuite, module: "tools/conformance/suite", stamps: []string{stampKube}, keep: 2,
		packages: []string{
			"./e2e", "k8s.io/kubernetes/test/images/agnhost", "k8s.io/sample-apiserver", "github.com/onsi/ginkgo/v2/ginkgo",
		},
	}
}

// helmRecipe builds the program that installs deploy/chart.
func helmRecipe() recipe {
	return recipe{name: nameHelm, module: "tools/helm", packages: []string{"helm.sh/helm/v4/cmd/helm"}, keep: 2}
}

func natsRecipe() recipe {
	return recipe{
		name: nameNats, module: ".", inputs: []string{"go.mod", "go.sum"}, keep: 3,
		packages: []string{"github.com/nats-io/nats-server/v2"},
	}
}

// frondRecipe keeps more folders than the others: a running dev cluster restarts its components from the folder it was
// started from, while the developer builds newer ones.
func frondRecipe() recipe {
	return recipe{
		name: nameFrond, module: ".", outside: []string{"tools"}, keep: 6,
		stamps:   []string{stampKube, stampFrond},                                 // the kubelet in edgecore reports its version in the Node
		packages: []string{"./cmd/cloudcore", "./cmd/edgecore", "./cmd/frond..."}, // frond-dev where the tree has one: an older tree is built for TestUpgrade
	}
}
