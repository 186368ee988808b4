package syncstate

import (
	"context"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/cmd/frond/cloudcore"
	"github.com/frond-edge/frond/internal/cli"
)

type nodeSync struct {
	cloudcore.Client
	output cli.Output
}

// NewSync returns frond sync.
func NewSync() *cobra.Command {
	s := &nodeSync{}
	cmd := &cobra.Command{
		Use:   "sync NODE",
		Short: "Show the sync state of each object of a gateway",
		Long: `Show the sync state of each object of a gateway: the desired version, the version on the gateway's disk, and the time of each.
Any cloudcore answers, also while the gateway is offline. It shows names of objects but no content, and needs the right to get
nodes/sync.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.Run(cmd.Context(), args[0], cmd.OutOrStdout()) },
	}
	s.AddFlags(cmd)
	s.output.AddFlag(cmd)
	return cmd
}

// Run prints the objects.
func (s *nodeSync) Run(ctx context.Context, node string, out io.Writer) error {
	var answer inspect.Sync
	if err := s.GetJSON(ctx, inspect.PathNodes+"/"+url.PathEscape(node)+inspect.PathObjects, &answer); err != nil {
		return err
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, answer)
	}
	now := time.Now()
	if err := printNodes(out, []inspect.Node{answer.Node}, now); err != nil {
		return err
	}
	table := cli.NewTable(out, "\nOBJECT", "STATE", "DESIRED", "ACKED", "CHANGED", "ON DISK", "SEQUENCE")
	for _, o := range answer.Objects {
		table.AddRow(o.Key().Human(), o.State, cli.OrDash(o.Desired), cli.OrDash(o.Acked), cli.FormatAge(o.Changed, now), onDisk(o, now), o.Sequence)
	}
	return table.Print()
}

// onDisk formats when the desired version was acked; an ack from before the cloudcore's memory has no time.
func onDisk(o inspect.Object, now time.Time) string {
	switch {
	case !o.AckedAt.IsZero():
		return cli.FormatAge(o.AckedAt, now)
	case o.State == inspect.Synced:
		return "yes"
	}
	return "-"
}
