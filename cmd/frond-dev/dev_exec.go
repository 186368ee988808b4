package main

import (
	"errors"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/cli"
)

func newExec(c *cluster) *cobra.Command {
	return &cobra.Command{
		Use:   "exec EDGE -- COMMAND [ARGUMENT...]",
		Short: "Run a command on a gateway, as its field staff would",
		Long: `Run a command on a gateway, as its field staff would: in its network and mount namespaces, where it has some, with its own
frond and with frond edge talking to it.`,
		Example: "  frond dev exec edge-1 -- frond edge get pods -A\n  frond dev exec edge-1 -- ip route",
		Args:    cobra.MinimumNArgs(2),

		ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			dev, err := c.openCluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			run, err := dev.Command(cmd.Context(), args[0], args[1:]...)
			if err != nil {
				return err
			}
			run.Stdin, run.Stdout, run.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
			err = run.Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				return &cli.ExitError{Code: exit.ExitCode()} // the command has printed its error
			}
			return err
		},
	}
}
