// Package check judges an installation of Frond and its gateways by what Kubernetes holds, and a cluster before the installation.
//
// It changes nothing: it reads, and asks the API server what frond init would change (a dry run). The judgements are pure functions; Cluster reads what they need. A source that cannot be read, such as a kind that the user may not
// list, leaves its checks undecided and the others as they are.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/frond-edge/frond/internal/install"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Pass Status = "pass"
	// Warn: it works, and somebody should look.
	Warn Status = "warn"
	// Fail: something does not work, or will not.
	Fail Status = "fail"
	// Skip: there is nothing to check.
	Skip Status = "skip"
	// Unknown: it could not be checked; Message says why.
	Unknown Status = "unknown"
)

// Result is the outcome of one check. Its JSON is the output of the command.
type Result struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	// Message says what was found, in one line.
	Message string `json:"message"`
	// Objects are what it was found at, at most MaxObjects of them; Message has their number.
	Objects []string `json:"objects,omitempty"`
	// Fix says what to do; "" where there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// MaxObjects bounds the objects that a result names.
const MaxObjects = 10

// A Check is one question.
type Check struct {
	ID string
	// Asks says what is checked, in a few words.
	Asks string
	run  func(ctx context.Context, c *Cluster) Result
}

// Run returns the results of checks, in their order.
func Run(ctx context.Context, c *Cluster, checks []Check) []Result {
	results := make([]Result, 0, len(checks))
	for _, check := range checks {
		r := check.run(ctx, c)
		r.ID = check.ID
		results = append(results, r)
	}
	return results
}

// Worst returns the worst status of results, as far as it matters: Fail, then Unknown, then Warn, else Pass.
func Worst(results []Result) Status {
	for _, status := range []Status{Fail, Unknown, Warn} {
		if slices.ContainsFunc(results, func(r Result) bool { return r.Status == status }) {
			return status
		}
	}
	return Pass
}

func passed(format string, values ...any) Result {
	return Result{Status: Pass, Message: fmt.Sprintf(format, values...)}
}

func skipped(format string, values ...any) Result {
	return Result{Status: Skip, Message: fmt.Sprintf(format, values...)}
}

// unread is the result where a source could not be read.
func unread(err error) Result {
	if errors.Is(err, install.ErrNotInstalled) {
		return Result{Status: Fail, Message: "Frond is not installed in this cluster", Fix: "frond check --pre, then frond init"}
	}
	return Result{Status: Unknown, Message: strings.ReplaceAll(err.Error(), "\n", " "), Fix: "run it as an administrator, or repair what the message names"}
}

// found returns a result about objects, of which it names some.
func found(status Status, objects []string, message, fix string) Result {
	slices.Sort(objects)
	return Result{Status: status, Message: message, Objects: objects[:min(len(objects), MaxObjects)], Fix: fix}
}
