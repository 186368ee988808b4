package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

type demo struct {
	up
	dark time.Duration
}

func newDemo(c *cluster) *cobra.Command {
	d := &demo{up: up{cluster: c}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a cluster and run a demo that verifies each step",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	d.flags(cmd)
	cmd.Flags().DurationVar(&d.dark, "dark", 10*time.Second, "how long the gateway stays without its link")
	return cmd
}

// Run tells the story on out. It ends at the first step that does not come true.
func (d *demo) Run(ctx context.Context, out, talk io.Writer) error {
	s := &story{out: out, began: time.Now(), dark: d.dark}
	s.step("A whole Frond on this machine: Kubernetes, a NATS hub, cloudcores and gateways, each part a real process")
	dev, err := d.start(ctx, talk)
	if err != nil {
		return err
	}
	s.dev = dev
	for _, chapter := range []func(context.Context) error{
		s.nodes, s.deploy, s.stores, s.cut, s.meanwhile, s.darkness, s.heal, s.afterwards,
	} {
		if err := chapter(ctx); err != nil {
			return fmt.Errorf("the story broke off at step %d: %w", s.number, err)
		}
	}
	_, _ = fmt.Fprintf(out, "\nThe whole story came true, in %s.\n", time.Since(s.began).Round(time.Second))
	printHints(out, dev)
	return nil
}
