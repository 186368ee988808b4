// Package syncstate holds the commands that show and confirm what cloudcore knows of gateways: frond status, frond sync and frond confirm.
package syncstate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/cmd/frond/cloudcore"
	"github.com/frond-edge/frond/internal/cli"
)

// watchInterval is the polling interval of --watch.
const watchInterval = 2 * time.Second

type nodeStatus struct {
	cloudcore.Client
	output cli.Output
	watch  bool
}

// NewStatus returns frond status.
func NewStatus() *cobra.Command {
	s := &nodeStatus{}
	cmd := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show the sync state of each gateway",
		Long: `Show the sync state of each gateway. Any cloudcore answers.

DESIRED counts the objects that the gateway should hold or delete, DELIVERED those sent to it, APPLIED those on its disk; ? means
unknown. BEHIND is the age of the oldest change that is not on its disk. OUTBOX counts unsent reports on the gateway. AUTONOMY is how long its pods stay while its link is down (annotation frond.io/autonomy of the Node or a NodeGroup).

It needs the right to list nodes, or to get the named one.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Run(cmd.Context(), strings.Join(args, ""), cmd.OutOrStdout())
		},
	}
	s.AddFlags(cmd)
	s.output.AddFlag(cmd)
	cmd.Flags().BoolVarP(&s.watch, "watch", "w", false, "ask again every 2 s until interrupted")
	return cmd
}

// Run prints the status of one node or of all, once or, with --watch, until ctx ends.
func (s *nodeStatus) Run(ctx context.Context, node string, out io.Writer) error {
	for {
		if err := s.printOnce(ctx, node, out); err != nil {
			return err
		}
		if !s.watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
			if !s.output.JSON() {
				fmt.Fprintln(out)
			}
		}
	}
}

func (s *nodeStatus) printOnce(ctx context.Context, node string, out io.Writer) error {
	if node != "" {
		var one inspect.Node
		if err := s.GetJSON(ctx, inspect.PathNodes+"/"+url.PathEscape(node), &one); err != nil {
			return err
		}
		if s.output.JSON() {
			return cli.PrintJSON(out, one)
		}
		return printNodes(out, []inspect.Node{one}, time.Now())
	}
	var all inspect.Nodes
	if err := s.GetJSON(ctx, inspect.PathNodes, &all); err != nil {
		return err
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, all)
	}
	if len(all.Nodes) == 0 {
		return errors.New("there are no gateways: no Node has the label node-role.kubernetes.io/edge. frond token create --print-join-command tells how one joins")
	}
	return printNodes(out, all.Nodes, time.Now())
}

func printNodes(out io.Writer, nodes []inspect.Node, now time.Time) error {
	table := cli.NewTable(out, "NODE", "LINK", "SINCE", "AUTONOMY", "OWNER", "DESIRED", "DELIVERED", "APPLIED", "BEHIND", "OUTBOX", "EDGECORE", "KUBELET")
	for i := range nodes {
		n := &nodes[i]
		desired, delivered, applied, behind := "?", "?", "?", "?"
		if p := n.Progress; p != nil {
			desired, delivered, applied = strconv.Itoa(p.Desired), formatCount(p.Delivered), formatCount(p.Applied)
			switch {
			case !p.Oldest.IsZero():
				behind = cli.FormatAge(p.Oldest, now)
			case p.Applied != nil:
				behind = "-"
			}
		}
		outbox, version := "?", "?"
		if n.Heartbeat != nil {
			outbox, version = strconv.FormatUint(n.Heartbeat.Outbox, 10), cli.OrDash(n.Heartbeat.Version)
		}
		table.AddRow(n.Name, linkWord(n.Link), cli.FormatAge(n.LinkSince, now), cli.OrDash(n.Autonomy), cli.OrDash(n.Owner),
			desired, delivered, applied, behind, outbox, version, cli.OrDash(n.Kubelet))
	}
	if err := table.Print(); err != nil {
		return err
	}
	for i := range nodes {
		if nodes[i].Problem != "" {
			fmt.Fprintf(out, "\n%s: %s\n", nodes[i].Name, nodes[i].Problem)
		}
	}
	return nil
}

func linkWord(status string) string {
	switch status {
	case "True":
		return "up"
	case "False":
		return "down"
	}
	return "unknown"
}

func formatCount(n *int) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(*n)
}
