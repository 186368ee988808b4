// Package program is the command line of Frond's two long-running programs: a configuration file, signals, a version and an exit code.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/buildinfo"
)

// Program is one of the two programs.
type Program struct {
	// Name is the command's name, and that of its configuration: /etc/frond/NAME.yaml.
	Name string
	// Short is a one-line description.
	Short string
	// Serve does the work with the content of the configuration file, until ctx ends. Its error is printed.
	Serve func(ctx context.Context, config []byte) error
	// Commands are further subcommands.
	Commands []*cobra.Command
}

// Run returns the exit code: 0, or 1 with one line on stderr. An interrupt or SIGTERM ends the context of Serve, as the end of ctx
// does.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := p.newCommand() //nolint:contextcheck // cobra hands it on
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, p.Name+":", err) // the exit code reports the error as well
		return 1
	}
	return 0
}

func (p Program) newCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:           p.Name + " --config FILE",
		Short:         p.Short,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}
			if err := p.Serve(cmd.Context(), config); err != nil {
				return fmt.Errorf("with configuration %s: %w", file, err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "config", "/etc/frond/"+p.Name+".yaml", "configuration file")
	cmd.AddCommand(p.Commands...)
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

// Metrics returns a registry with the metrics of every Go process.
func Metrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}
