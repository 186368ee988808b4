package toolchain

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// What the linker writes into a program, besides a recipe's own flags.
const (
	stampKube  = "kubernetes" // the version of Kubernetes that the module is built with
	stampFrond = "frond"      // the state of the source tree
)

// kubeBuildDate is when v1.37.1 was released. A date of our own would make two builds of the same sources differ.
const kubeBuildDate = "2026-09-23T17:06:22Z"

// LinkerFlags returns the -ldflags that cloudcore, edgecore and frond are built with, for `make build`. An empty tree
// is found as Request.Tree says.
func LinkerFlags(ctx context.Context, tree string) (string, error) {
	dir, err := findTree(tree)
	if err != nil {
		return "", fmt.Errorf("toolchain: %w", err)
	}
	flags, err := linkerFlags(ctx, dir, frondRecipe())
	if err != nil {
		return "", fmt.Errorf("toolchain: %w", err)
	}
	return flags, nil
}

// linkerFlags adds the stamps to a recipe's flags. Their values are not part of a key: that of Kubernetes stands in
// go.mod, which is, and a commit that changes no source is no reason to link again.
func linkerFlags(ctx context.Context, tree string, r recipe) (string, error) {
	flags := []string{r.ldflags}
	if slices.Contains(r.stamps, stampKube) {
		version, err := requiredVersion(filepath.Join(tree, r.module, "go.mod"), "k8s.io/kubernetes")
		if err != nil {
			return "", fmt.Errorf("find the version of Kubernetes: %w", err)
		}
		flags = append(flags, kubeStamp(version)...)
	}
	if slices.Contains(r.stamps, stampFrond) {
		if version := describeTree(ctx, tree); version != "" {
			flags = append(flags, "-X "+modulePath+"/internal/buildinfo.version="+version)
		}
	}
	return strings.Join(flags, " "), nil
}

// kubeStamp sets the version in both places upstream's own build sets: the first is what a Node and kubectl version
// show, the second goes into the User-Agent. Unset they say v0.0.0-master, which kubectl cannot parse.
func kubeStamp(version string) []string {
	if version == "" {
		return nil
	}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, set := range [][2]string{
			{"gitVersion", version},
			{"gitMajor", major},
			{"gitMinor", minor},
			{"gitTreeState", "clean"},
			{"gitCommit", "frond-dev"},
			{"buildDate", kubeBuildDate},
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, set[0], set[1]))
		}
	}
	return flags
}

// requiredVersion returns the version of a module that a go.mod asks for, "" if it does not.
func requiredVersion(file, module string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) >= 2 && fields[0] == module {
			return fields[1], nil
		}
	}
	return "", nil
}

// describeTree names the state of the tree by its last tag and commit. It is "" where git or the repository is missing, as
// in an unpacked archive: the programs then call themselves devel.
func describeTree(ctx context.Context, tree string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", tree, "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
