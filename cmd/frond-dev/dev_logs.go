package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

type logsCommand struct {
	*cluster
	follow bool
}

func newLogs(c *cluster) *cobra.Command {
	l := &logsCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "logs PART",
		Short: "Print the log of a part",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.Run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on until interrupted")
	return cmd
}

// followInterval is the polling interval of a followed log.
const followInterval = 200 * time.Millisecond

// Run prints the log.
func (l *logsCommand) Run(ctx context.Context, part string, out, talk io.Writer) error {
	dev, err := l.openCluster(talk)
	if err != nil {
		return err
	}
	f, err := dev.Log(part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		if _, err := io.Copy(out, f); err != nil {
			return fmt.Errorf("copy log: %w", err)
		}
		if !l.follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
