package device

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/cmd/frond/devicetext"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
)

// watchInterval is the polling interval of --watch, as that of frond status.
const watchInterval = 2 * time.Second

type lister struct {
	cluster
	node   string
	output cli.Output
}

func newList() *cobra.Command {
	l := &lister{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List devices: where they are, their state, and whether they are as desired",
		Long: `List devices. STATE is what the device or its mapper told last; "unknown" while the gateway is away. APPLIED says whether the device
reports each desired value of the Device as it is now: yes, no, or ? while that is not known.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	l.AddNamespacedFlags(cmd)
	l.output.AddFlag(cmd)
	cmd.Flags().BoolVarP(&l.all, "all-namespaces", "A", false, "of all namespaces")
	cmd.Flags().StringVar(&l.node, "node", "", "only those of a gateway")
	return cmd
}

// Run lists the devices.
func (l *lister) Run(ctx context.Context, out, talk io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, namespace, err := l.connect()
	if err != nil {
		return err
	}
	all, err := list(ctx, client, namespace, l.node)
	if err != nil {
		return err
	}
	if l.output.JSON() {
		return cli.PrintJSON(out, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(talk, "no devices")
		return nil
	}
	return devicetext.PrintList(out, all, time.Now())
}

type getter struct {
	cluster
	output cli.Output
	watch  bool
}

func newGet() *cobra.Command {
	g := &getter{}
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a device: its desired and reported values, and what holds them back",
		Example: "  frond device get boiler\n  frond device get boiler --watch",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return g.Run(cmd.Context(), args[0], cmd.OutOrStdout()) },
	}
	g.AddNamespacedFlags(cmd)
	g.output.AddFlag(cmd)
	cmd.Flags().BoolVarP(&g.watch, "watch", "w", false, "ask again every 2 s until interrupted")
	return cmd
}

// Run shows the device, once or, with --watch, until ctx ends.
func (g *getter) Run(ctx context.Context, name string, out io.Writer) error {
	client, namespace, err := g.connect()
	if err != nil {
		return err
	}
	for {
		status, err := readWithin(ctx, client, namespace, name)
		if err != nil {
			return err
		}
		if g.output.JSON() {
			err = cli.PrintJSON(out, status)
		} else {
			err = devicetext.PrintDevice(out, &status, time.Now())
		}
		if err != nil || !g.watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
			if !g.output.JSON() {
				fmt.Fprintln(out)
			}
		}
	}
}
