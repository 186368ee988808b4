// Package installation holds the commands that install Frond in a cluster, replace its CA and back up its keys: frond init, frond ca and
// frond backup.
package installation

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/deploy/policy"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/sizing"
)

// initTimeout bounds frond init: some twenty requests, also over a slow link.
const initTimeout = 2 * time.Minute

type initCommand struct {
	kubeflags.Flags
	options       install.Options
	taintGateways bool
	output        cli.Output
}

// NewInit returns frond init.
func NewInit() *cobra.Command {
	i := &initCommand{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Install what Frond needs in a cluster: CA, keys, certificates, configuration, kinds",
		Long: `Install what Frond needs in a cluster: the hub's CA, the keys and certificates of its servers and of cloudcore, their configuration,
Frond's kinds, and the admission policies that keep its pods off gateways and protect its keys from accidental deletion. Everything
is in the namespace frond-system, except the kinds, the roles and the policies.

It is idempotent: an existing key is kept, missing objects are created, and a certificate that has used two thirds of its lifetime
is renewed. Earlier choices need not be repeated.`,
		Example: "  frond init --hub-url tls://hub.example.com:7422\n  frond init --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("taint-gateways") {
				i.options.Settings.TaintGateways = &i.taintGateways
			}
			return i.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	i.AddFlags(cmd)
	i.output.AddFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&i.options.DryRun, "dry-run", false, "only say what would be done")
	f.StringSliceVar(&i.options.Settings.HubURLs, "hub-url", nil, "where gateways reach the hub: tls://HOST:PORT, wss://HOST")
	f.StringSliceVar(&i.options.Settings.HubHosts, "hub-host", nil, "further names and addresses for the certificates of the hub's servers")
	f.IntVar(&i.options.Settings.Nodes, "nodes", 0, "gateways to plan for: prints what they need in the cloud, and chooses --cells, --partitions and --hub-servers where they are not chosen yet")
	f.IntVar(&i.options.Settings.Cells, "cells", 0, fmt.Sprintf("accounts that gateways are spread over, a few hundred in each; chosen once (default %d, or by --nodes)", install.DefaultCells))
	f.IntVar(&i.options.Settings.Partitions, "partitions", 0, "streams that the desired state of gateways is spread over; later only changed by building them anew (default one for 6,300 of --nodes)")
	f.IntVar(&i.options.Settings.HubServers, "hub-servers", 0, fmt.Sprintf("servers of the hub: 1, 3 or 5 (default %d)", install.DefaultHubServers))
	f.BoolVar(&i.taintGateways, "taint-gateways", false, "have the printed join command register gateways with the taint "+install.GatewayTaint+", so that only pods that tolerate it run there; =false ends it for gateways that join later")
	f.StringSliceVar(&i.options.Settings.Schedulers, "scheduler", nil, "users beside "+policy.DefaultScheduler+" that may bind pods of frond-system and of protected namespaces")
	f.BoolVar(&i.options.Rotate, "rotate-certificates", false, "reissue the certificates of the hub, of cloudcore and of administrators, with new keys")
	f.BoolVar(&i.options.KeysOnly, "keys-only", false, "only renew and complete the Secrets and ConfigMaps of frond-system, for a job with no rights elsewhere")
	return cmd
}

// Run completes the installation.
func (i *initCommand) Run(ctx context.Context, out, talk io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	cfg, err := i.RESTConfig()
	if err != nil {
		return err
	}
	report, err := install.Init(ctx, cfg, i.options, time.Now())
	if err != nil {
		return fmt.Errorf("%w\n  what was done stays: run frond init again", err)
	}
	if i.output.JSON() {
		return cli.PrintJSON(out, report)
	}
	return printReport(report, i.options.DryRun, out, talk)
}

func printReport(r install.Report, dry bool, out, talk io.Writer) error {
	table := cli.NewTable(out, "KIND", "NAME", "ACTION")
	for _, o := range r.Objects {
		table.AddRow(o.Kind, o.Name, o.Action)
	}
	if err := table.Print(); err != nil {
		return err
	}
	for _, file := range r.Files {
		fmt.Fprintf(out, "%s: %s\n", file.File, file.Reason)
	}
	if r.Plan != nil {
		if err := printPlan(*r.Plan, out); err != nil {
			return err
		}
	}
	for _, warning := range r.Warnings {
		fmt.Fprintln(talk, "warning:", warning)
	}
	switch n := r.Changed(); {
	case n == 0:
		fmt.Fprintln(out, "nothing to change")
	case dry:
		fmt.Fprintf(out, "%d objects would be written; nothing was\n", n)
	default:
		fmt.Fprintf(out, "%d objects written; the authority is %s\n", n, r.CAHash)
	}
	return nil
}

// printPlan prints what each process of the cloud needs for the planned gateways.
func printPlan(p sizing.Plan, out io.Writer) error {
	fmt.Fprintf(out, "\nfor %d gateways with ten pods each, also with one cloudcore lost and, of several hub servers, one:\n", p.Nodes)
	table := cli.NewTable(out, "PROCESS", "COPIES", "CPU", "MEMORY", "DISK")
	table.AddRow("nats-server", strconv.Itoa(p.HubServers), milli(p.Hub.MilliCPU), mebi(p.Hub.MemoryMiB), strconv.Itoa(p.Hub.DiskGiB)+"Gi")
	table.AddRow("cloudcore", strconv.Itoa(p.Cloudcores), milli(p.Cloudcore.MilliCPU), mebi(p.Cloudcore.MemoryMiB), "")
	if err := table.Print(); err != nil {
		return err
	}
	fmt.Fprintf(out, "gateways are spread over %d cells, their desired state over %d partitions\n", p.Cells, p.Partitions)
	fmt.Fprintf(out, "the Kubernetes API has %d writes a second while nothing changes: Leases and the status of Nodes\n", p.APIWrites)
	if p.Extrapolated {
		fmt.Fprintf(out, "extrapolated: measured with up to %d gateways\n", sizing.MeasuredNodes)
	}
	return nil
}

func milli(cpu int) string { return strconv.Itoa(cpu) + "m" }

func mebi(memory int) string { return strconv.Itoa(memory) + "Mi" }
