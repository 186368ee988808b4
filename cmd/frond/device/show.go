package device

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
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
	return printList(out, all, time.Now())
}

func printList(out io.Writer, all []Status, now time.Time) error {
	table := cli.NewTable(out, "NAMESPACE", "NAME", "MODEL", "NODE", "STATE", "LAST", "APPLIED", "AGE")
	for i := range all {
		s := &all[i]
		last, _ := time.Parse(time.RFC3339, s.LastOnline) // "-" if it is none
		table.AddRow(s.Namespace, s.Name, cli.OrDash(s.Model), cli.OrDash(s.Node), cli.OrDash(s.State), cli.FormatAge(last, now),
			answerWord(s, devices.ConditionApplied), cli.FormatAge(s.Created, now))
	}
	return table.Print()
}

// answerWord returns a condition in the words of a table.
func answerWord(s *Status, kind string) string {
	words := map[metav1.ConditionStatus]string{metav1.ConditionTrue: "yes", metav1.ConditionFalse: "no"}
	return cmp.Or(words[s.condition(kind)], "?")
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
		rctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
		_, status, err := read(rctx, client, namespace, name)
		cancel()
		if err != nil {
			return err
		}
		if g.output.JSON() {
			err = cli.PrintJSON(out, status)
		} else {
			err = printDevice(out, &status, time.Now())
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

func printDevice(out io.Writer, s *Status, now time.Time) error {
	if err := printList(out, []Status{*s}, now); err != nil {
		return err
	}
	table := cli.NewTable(out, "\nPROPERTY", "DESIRED", "REPORTED", "AT")
	for _, p := range s.Properties {
		at := time.Time{}
		if ms, err := strconv.ParseInt(p.ReportedAt, 10, 64); err == nil {
			at = time.UnixMilli(ms)
		}
		table.AddRow(p.Name, valueOf(p.Desired), valueOf(p.Reported), cli.FormatAge(at, now))
	}
	if err := table.Print(); err != nil {
		return err
	}
	for _, c := range s.Conditions {
		if c.Status != "True" {
			fmt.Fprintf(out, "\n%s: %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

func valueOf(v *string) string {
	if v == nil {
		return "-"
	}
	return *v
}
