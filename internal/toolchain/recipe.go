package toolchain

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
	nameTestImages = "testimages"
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
	inputs   []string // files and folders that go into the key, relative to the tree; nested modules are left out
	outside  []string // folders below inputs that no program imports, relative to the tree
	packages []string
	ldflags  string
	stamps   []string // versions that the linker adds: stampKube, stampFrond
	tags     string
	cgo      bool
	keep     int               // folders of this name to keep, the one in use included
	links    map[string]string // symlink → target, made after the build
	write    []string          // program of this build, and its arguments, that writes the real result; the programs are then removed
}

func kubeRecipe() recipe {
	links := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy", "metrics-server"} {
		links[name] = "kube"
	}
	return recipe{
		name: nameKube, module: "tools/kube", inputs: []string{"tools/kube"}, packages: []string{"."},
		ldflags: stripped, stamps: []string{stampKube}, keep: 2, links: links, // 150 MB each
	}
}

// controlPlaneRecipe builds kube-apiserver, kube-controller-manager and kube-scheduler of an older minor version.
func controlPlaneRecipe(minor string) recipe {
	module := "tools/kube/" + minor
	return recipe{
		name: nameKube + minor, module: module, inputs: []string{module}, packages: []string{"."}, ldflags: stripped, stamps: []string{stampKube}, keep: 2,
		links: map[string]string{"kube-apiserver": minor, "kube-controller-manager": minor, "kube-scheduler": minor}, // a module's program has the name of its folder
	}
}

func containerdRecipe() recipe {
	const upstream = "github.com/containerd/containerd/v2"
	return recipe{
		name: nameContainerd, module: "tools/node/containerd", inputs: []string{"tools/node/containerd"}, keep: 3,
		packages: []string{upstream + "/cmd/containerd", upstream + "/cmd/containerd-shim-runc-v2", upstream + "/cmd/ctr"},
		ldflags:  stripped + " -X " + upstream + "/version.Version=" + containerdVersion,
	}
}

// runcRecipe links statically, so the result runs without libseccomp2 and after a change of the C library. runc
// enters the namespaces in C, so it cannot be built without cgo. It needs seccomp: the kubelet starts the sandbox of
// every pod under the profile RuntimeDefault, and containerd passes that to runc whenever the kernel supports seccomp.
func runcRecipe() recipe {
	return recipe{
		name: nameRunc, module: "tools/node/runc", inputs: []string{"tools/node/runc"}, keep: 3, cgo: true,
		packages: []string{"github.com/opencontainers/runc"},
		ldflags:  stripped + " -linkmode external -extldflags -static",
		tags:     "netgo,osusergo,seccomp,urfave_cli_no_docs",
	}
}

func cniRecipe() recipe {
	r := recipe{name: nameCNI, module: "tools/node/cni", inputs: []string{"tools/node/cni"}, ldflags: stripped, keep: 3}
	for _, plugin := range []string{
		"ipam/host-local", "main/bridge", "main/loopback", "main/ptp",
		"meta/bandwidth", "meta/firewall", "meta/portmap", "meta/tuning",
	} {
		r.packages = append(r.packages, "github.com/containernetworking/plugins/plugins/"+plugin)
	}
	return r
}

func imagesRecipe() recipe {
	return recipe{
		name: nameImages, module: "tools/images", inputs: []string{"tools/images"}, ldflags: stripped, keep: 3,
		packages: []string{".", "./pause", "./tools", "./http"},
		write:    []string{"images"},
	}
}

// corednsRecipe builds the DNS server of gateways' pods.
func corednsRecipe() recipe {
	return recipe{
		name: nameCoreDNS, module: "tools/coredns", inputs: []string{"tools/coredns"}, packages: []string{"."}, ldflags: stripped, keep: 3,
	}
}

// suiteRecipe shares most compiled packages with kubeRecipe: the go.mod of both require the same versions, which a test checks.
func suiteRecipe() recipe {
	return recipe{
		name: nameSuite, module: "tools/conformance/suite", inputs: []string{"tools/conformance/suite"}, keep: 2,
		ldflags: stripped, stamps: []string{stampKube},
		packages: []string{
			"./e2e", "k8s.io/kubernetes/test/images/agnhost", "k8s.io/sample-apiserver", "github.com/onsi/ginkgo/v2/ginkgo",
		},
	}
}

func testImagesRecipe() recipe {
	return recipe{
		name: nameTestImages, module: "tools/images", inputs: []string{"tools/images"}, ldflags: stripped, keep: 3,
		packages: []string{"./testimages", "./pause", "./tools"},
	}
}

func natsRecipe() recipe {
	return recipe{
		name: nameNats, module: ".", inputs: []string{"go.mod", "go.sum"}, ldflags: stripped, keep: 3,
		packages: []string{"github.com/nats-io/nats-server/v2"},
	}
}

// frondRecipe keeps more folders than the others: a running dev cluster restarts its components from the folder it was
// started from, while the developer builds newer ones.
func frondRecipe() recipe {
	return recipe{
		name: nameFrond, module: ".", inputs: []string{"."}, outside: []string{"tools"}, ldflags: stripped, keep: 6,
		stamps:   []string{stampKube, stampFrond},                                 // the kubelet in edgecore reports its version in the Node
		packages: []string{"./cmd/cloudcore", "./cmd/edgecore", "./cmd/frond..."}, // frond-dev where the tree has one: an older tree is built for TestUpgrade
	}
}
