// Package kubeversion lists the versions of Kubernetes' API server with which Frond was tested.
//
// It holds one table and derives a verdict from it. frond init, the condition of Nodes and the installation guide show the verdict; a test
// compares the guide with the table.
package kubeversion

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// A Release is a minor version of Kubernetes that Frond was tested with.
type Release struct {
	// Minor is "1.37".
	Minor string
	// Patch is the tested version.
	Patch string
	// Impersonation is how cloudcore acts as a node with this release.
	Impersonation Impersonation
}

// Impersonation is the kind of permission with which cloudcore acts as a node.
type Impersonation string

// The kinds of impersonation. Constrained impersonation is limited to nodes and is on by default since Kubernetes 1.36.
const (
	Constrained Impersonation = "constrained"
	Classic     Impersonation = "classic"
)

// Tested returns the releases that conformance tests were run against, oldest first.
func Tested() []Release {
	return []Release{
		{Minor: "1.35", Patch: "v1.35.4", Impersonation: Classic},
		{Minor: "1.36", Patch: "v1.36.4", Impersonation: Constrained},
		{Minor: "1.37", Patch: "v1.37.1", Impersonation: Constrained},
	}
}

// ImpersonationOf returns the impersonation for a minor version, constrained if the version is not a tested one.
func ImpersonationOf(minor string) Impersonation {
	for _, r := range Tested() {
		if r.Minor == minor {
			return r.Impersonation
		}
	}
	return Constrained
}

// The reasons of a verdict, as used in conditions.
const (
	ReasonTested     = "TestedVersion"
	ReasonOlder      = "OlderThanTested"
	ReasonNewer      = "NewerThanTested"
	ReasonUnreadable = "UnreadableVersion"
)

// A Verdict says whether Frond was tested with a version.
type Verdict struct {
	Tested          bool
	Reason, Message string
}

// Evaluate returns the verdict on an API server's version string, such as "v1.36.4-eks-1".
func Evaluate(server string) Verdict {
	tested := Tested()
	oldest, newest := tested[0].Minor, tested[len(tested)-1].Minor
	have, err := version.ParseGeneric(server)
	if err != nil {
		return Verdict{Reason: ReasonUnreadable, Message: fmt.Sprintf("the API server's version %q cannot be read: %v", server, err)}
	}
	minor := fmt.Sprintf("%d.%d", have.Major(), have.Minor())
	for _, r := range tested {
		if r.Minor == minor {
			return Verdict{Tested: true, Reason: ReasonTested, Message: "Frond is tested with Kubernetes " + minor}
		}
	}
	reason, advice := ReasonNewer, "upgrade Frond"
	if have.LessThan(version.MustParseGeneric(oldest)) {
		reason, advice = ReasonOlder, "upgrade Kubernetes"
	}
	return Verdict{Reason: reason, Message: fmt.Sprintf("Frond is tested with Kubernetes %s to %s, and this is %s: %s, or test what you use before you rely on it",
		oldest, newest, minor, advice)}
}
