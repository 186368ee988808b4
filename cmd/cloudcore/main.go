// Command cloudcore is the cloud part of Frond: it publishes to each gateway what Kubernetes wants there and applies to
// Kubernetes what gateways report. Run as many replicas as you like; they are all alike.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/logging"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "cloudcore:", err) // nowhere else to say it
		return 1
	}
	return 0
}

func command() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:           "cloudcore --config FILE",
		Short:         "The cloud part of Frond",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), file) },
	}
	cmd.Flags().StringVar(&file, "config", "/etc/frond/cloudcore.yaml", "configuration file")
	cmd.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Version())
			return err
		},
	})
	return cmd
}

func serve(ctx context.Context, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find this host's name: %w", err)
	}
	cfg, err := config.ParseCloudCore(data, hostname)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	log, err := logging.New(cfg.LogLevel)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	ctrl.SetLogger(logging.Bridge(log.Named("kubernetes")))
	kube, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c, err := cloud.New(cfg, kube, metrics, log)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	log.Info("cloudcore starting", zap.String("version", buildinfo.Version()), zap.String("id", cfg.ID))
	err = c.Start(ctx)
	if err == nil {
		log.Info("cloudcore stopped")
	}
	if errors.Is(err, cloud.ErrRestored) {
		log.Warn("beginning anew", zap.Error(err))
		return again()
	}
	return err
}

// again puts a new process in place of this one, under its id: whoever supervises it sees no end.
func again() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ()) // returns only if it failed
	}
	return fmt.Errorf("begin anew: %w", err)
}
