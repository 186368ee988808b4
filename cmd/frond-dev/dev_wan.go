package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// wanProcess is the forwarder process of a cluster's simulated WAN; devcluster starts it.
type wanProcess struct{ config string }

func newWan() *cobra.Command {
	w := &wanProcess{}
	cmd := &cobra.Command{
		Use: "wan", Short: "Forward gateways to the hub", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return w.Run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&w.config, "config", "", "configuration file")
	return cmd
}

// Run forwards until ctx ends.
func (w *wanProcess) Run(ctx context.Context) error {
	var cfg wan.Config
	if err := readConfig(w.config, &cfg); err != nil {
		return err
	}
	log, err := zap.NewProduction()
	if err != nil {
		return fmt.Errorf("make logger: %w", err)
	}
	return wan.New(cfg, log).Start(ctx)
}

// readConfig reads the configuration of a process that devcluster starts.
func readConfig(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read configuration %s: %w", file, err)
	}
	return nil
}
