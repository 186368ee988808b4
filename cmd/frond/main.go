// Command frond is the command line for people: what a cluster needs (frond init), who may come in (frond token, frond node,
// frond ca), how far gateways are (frond status, frond sync), the gateway it runs on (frond edge, frond join, frond reset), and
// development clusters (frond dev).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/buildinfo"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line. Results go to stdout, talk to stderr.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:               "frond",
		Short:             "Frond carries Kubernetes to gateways behind bad networks",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(newInit(), newToken(), newNode(), newCA(), newNodeStatus(), newSync(), newConfirm(), newEdge(), newJoin(), newReset(), newDev(), newVersion())
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			_, _ = fmt.Fprintln(stderr, "interrupted")
			return 130
		}
		if failed, ok := errors.AsType[*failure](err); ok { // it is worded already, and has a code of its own
			if failed.message != "" {
				_, _ = fmt.Fprintln(stderr, strings.TrimSuffix(failed.message, "\n"))
			}
			return failed.code
		}
		_, _ = fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Version())
			return err
		},
	}
}
