// Package check holds the command that judges an installation: frond check.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/check"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install"
)

const (
	// roundTimeout bounds one round of checks: a fleet of 100,000 Nodes is read in pages.
	roundTimeout = 5 * time.Minute
	// waitInterval is the pause between two rounds of --wait.
	waitInterval = 5 * time.Second
	// failed is the exit code when a check fails.
	failed = 2
)

type command struct {
	kubeflags.Flags
	output  cli.Output
	before  bool
	servers int
	wait    time.Duration
}

// Output is the JSON output.
type Output struct {
	// Status is the worst status of the checks: pass, warn, unknown or fail.
	Status check.Status   `json:"status"`
	Checks []check.Result `json:"checks"`
}

// NewCommand returns frond check.
func NewCommand() *cobra.Command {
	k := &command{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the installation and its gateways, or a cluster before the installation",
		Long: `Check the installation and its gateways, or with --pre a cluster before the installation. It changes nothing.

Each line is one check with its id; docs/operations/check.md describes them. Exit codes: 0 all passed, or only warnings; 2 a check failed;
1 it could not be checked.`,
		Example: "  frond check --pre\n  frond check --wait 5m\n  frond check -o json | jq '.checks[] | select(.status != \"pass\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return k.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	k.AddFlags(cmd)
	k.output.AddFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&k.before, "pre", false, "check whether Frond can be installed here")
	f.IntVar(&k.servers, "hub-servers", install.DefaultHubServers, "with --pre: servers of the hub that is planned")
	f.DurationVar(&k.wait, "wait", 0, "check again until nothing fails any more, for so long")
	return cmd
}

// Run checks once, or with --wait until nothing fails.
func (k *command) Run(ctx context.Context, out, talk io.Writer) error {
	if k.servers < 1 || k.wait < 0 {
		return errors.New("--hub-servers and --wait must be positive")
	}
	checks := check.Installed()
	if k.before {
		checks = check.Before(k.servers)
	}
	until := time.Now().Add(k.wait)
	for all := checks; ; {
		results, err := k.round(ctx, checks)
		if err != nil {
			return err
		}
		ids := failing(results)
		switch over := len(ids) == 0 || time.Now().Add(waitInterval).After(until); {
		case over && len(checks) == len(all):
			return k.report(results, check.Worst(results), out)
		case over:
			checks = all // the last round is about all
			continue
		}
		// While some fail, only these are repeated.
		fmt.Fprintln(talk, "waiting for", strings.Join(ids, ", "))
		checks = slices.DeleteFunc(slices.Clone(all), func(c check.Check) bool { return !slices.Contains(ids, c.ID) })
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitInterval):
		}
	}
}

func (k *command) round(ctx context.Context, checks []check.Check) ([]check.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	cfg, err := k.RESTConfig()
	if err != nil {
		return nil, err
	}
	cluster, err := check.NewCluster(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return check.Run(ctx, cluster, checks), nil
}

func failing(results []check.Result) (ids []string) {
	for _, r := range results {
		if r.Status == check.Fail || r.Status == check.Unknown {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func (k *command) report(results []check.Result, worst check.Status, out io.Writer) error {
	if err := k.print(results, worst, out); err != nil {
		return err
	}
	switch worst {
	case check.Fail:
		return &cli.ExitError{Code: failed, Message: "failed: " + strings.Join(failing(results), ", ")}
	case check.Unknown:
		return &cli.ExitError{Code: 1, Message: "not checked: " + strings.Join(failing(results), ", ")}
	case check.Pass, check.Warn, check.Skip:
	}
	return nil
}

func (k *command) print(results []check.Result, worst check.Status, out io.Writer) error {
	if k.output.JSON() {
		return cli.PrintJSON(out, Output{worst, results})
	}
	table := cli.NewTable(out, "CHECK", "STATUS", "FOUND")
	for _, r := range results {
		table.AddRow(r.ID, string(r.Status), r.Message)
	}
	if err := table.Print(); err != nil {
		return err
	}
	for _, r := range results {
		if len(r.Objects) == 0 && r.Fix == "" {
			continue
		}
		fmt.Fprintf(out, "\n%s (%s): %s\n", r.ID, r.Status, r.Fix)
		for _, o := range r.Objects {
			fmt.Fprintln(out, "  "+o)
		}
	}
	return nil
}
