package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
)

// sensorProcess is the process of a virtual sensor; frond dev device start starts it.
type sensorProcess struct{ config string }

func newSensor() *cobra.Command {
	s := &sensorProcess{}
	cmd := &cobra.Command{
		Use: "sensor", Short: "Report as a virtual sensor", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.Run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&s.config, "config", "", "configuration file")
	return cmd
}

// Run reports until ctx ends.
func (s *sensorProcess) Run(ctx context.Context) error {
	var cfg sensor.Config
	if err := readConfig(s.config, &cfg); err != nil {
		return err
	}
	log, err := zap.NewProduction()
	if err != nil {
		return fmt.Errorf("make logger: %w", err)
	}
	return sensor.New(cfg, log).Start(ctx)
}
