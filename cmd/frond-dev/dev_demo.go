package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

type demoCommand struct {
	up
	offlineFor time.Duration
}

func newDemo(c *cluster) *cobra.Command {
	d := &demoCommand{up: up{cluster: c}}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a cluster and run a demo that verifies each step",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	d.addFlags(cmd)
	cmd.Flags().DurationVar(&d.offlineFor, "dark", 10*time.Second, "how long the gateway stays without its link")
	return cmd
}

// Run runs the demo and prints it on out. It ends at the first step that fails.
func (d *demoCommand) Run(ctx context.Context, out, talk io.Writer) error {
	s := &demoRun{out: out, began: time.Now(), offlineFor: d.offlineFor}
	s.printStep("A whole Frond on this machine: Kubernetes, a NATS hub, cloudcores and gateways, each part a real process")
	d.spec.Devices = true
	dev, err := d.startCluster(ctx, talk)
	if err != nil {
		return err
	}
	s.dev = dev
	sensor := &sensorStory{demoRun: s}
	for _, chapter := range []func(context.Context) error{
		sensor.clear, s.showNodes, s.deployDemo, s.checkStores, sensor.start, s.cutLink, sensor.markCut, s.changeWhileCut, s.checkWhileCut,
		sensor.checkWhileCut, s.healLink, s.checkRecovered, sensor.checkSamples,
	} {
		if err := chapter(ctx); err != nil {
			return fmt.Errorf("the story broke off at step %d: %w", s.stepNumber, err)
		}
	}
	_, _ = fmt.Fprintf(out, "\nThe whole story came true, in %s.\n", time.Since(s.began).Round(time.Second))
	printHints(out, dev)
	return nil
}
