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

// The stamps that the linker writes into a program, in addition to a recipe's own flags.
const (
	stampKube  = "kubernetes" // the version of Kubernetes that the module is built with
	stampFrond = "frond"      // the state of the source tree
)

// kubeBuildDate is the release date of v1.37.1. The present date would make two builds of the same sources differ.
const kubeBuildDate = "2026-09-23T17:06:22Z"

// LinkerFlags returns the -ldflags of cloudcore, edgecore and frond, for `make build`. An empty tree
// is found as described at Request.Tree.
func LinkerFlags(ctx context.Context, tree string) (string, error) {
	dir, err := findTree(tree)
	if err != nil {
		return "", fmt.Errorf("toolchain: %w", err)
	}
	flags, err := stampedFlags(ctx, dir, frondRecipe())
	if err != nil {
		return "", fmt.Errorf("toolchain: %w", err)
	}
	return flags, nil
}

// stampedFlags adds the stamps to a recipe's flags. Their values are not part of a key: the version of Kubernetes is in
// go.mod, which is part of it, and a commit that changes no source must not cause another link.
func stampedFlags(ctx context.Context, tree string, r recipe) (string, error) {
	flags := []string{r.linkerFlags()}
	if slices.Contains(r.stamps, stampKube) {
		version, err := requiredVersion(filepath.Join(tree, r.module, "go.mod"), "k8s.io/kubernetes")
		if err != nil {
			return "", fmt.Errorf("find the version of Kubernetes: %w", err)
		}
		flags = append(flags, kubeStamp(version)...)
	}
	if slices.Contains(r.stamps, stampFrond) {
		if version := DescribeTree(ctx, tree); version != "" {
			flags = append(flags, "-X "+modulePath+"/internal/buildinfo.version="+version)
		}
	}
	return strings.Join(flags, " "), nil
}

// kubeStamp sets the version in both places that upstream's own build sets: a Node and kubectl version
// show the first, the User-Agent contains the second. Unset they are v0.0.0-master, which kubectl cannot parse.
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

// requiredVersion returns the version of a module that a go.mod requires, "" if it does not.
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

// DescribeTree describes the state of the tree by its last tag and commit. It is "" where git or the repository is missing, as
// in an unpacked archive: the programs then report the version devel.
func DescribeTree(ctx context.Context, tree string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", tree, "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
