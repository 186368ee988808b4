// Package kubeversion says with which versions of Kubernetes' API server Frond was tested.
//
// It is one table and the verdict that follows from it. frond init, the condition of Nodes and the installation guide show it; a test
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
	// Patch is the version that was run.
	Patch string
	// Impersonation says how cloudcore acts as a node there.
	Impersonation Impersonation
}

// Impersonation is the kind of rights by which cloudcore acts as a node.
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

// ImpersonationOf returns how cloudcore acts as a node with a minor version, constrained if it is not a tested one.
func ImpersonationOf(minor string) Impersonation {
	for _, r := range Tested() {
		if r.Minor == minor {
			return r.Impersonation
		}
	}
	return Constrained
}

// Reasons of a verdict, as conditions have them.
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

// Evaluate judges the version that an API server says of itself, such as "v1.36.4-eks-1".
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
