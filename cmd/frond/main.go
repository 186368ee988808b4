// Command frond is Frond's command line: cluster administration (frond init, frond backup), admission of gateways (frond token, frond
// node, frond ca), the sync state of gateways (frond status, frond sync), the gateway on which it runs (frond edge, frond join,
// frond reset), and development clusters (frond dev).
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

// run executes one command line. Results go to stdout, messages to stderr.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := findMistyped(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			_, _ = fmt.Fprintln(stderr, "interrupted")
			return 130
		}
		if failed, ok := errors.AsType[*exitError](err); ok { // has a final message and an exit code
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

// newRoot returns the whole tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "frond",
		Short: "Frond runs Kubernetes on gateways behind unreliable networks",
		Long: `Frond runs Kubernetes on gateways behind unreliable networks.

Results go to stdout, talk to stderr. Exit codes: 0 done; 1 an error, which says what to do; 2 (join) the machine is not fit, and
nothing was changed; 130 interrupted. frond edge and frond dev exec end with the code of what they run.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Cluster administration:", []*cobra.Command{newInit(), newBackup(), newToken(), newNode(), newCA()}},
		{"All gateways, seen from the cloud:", []*cobra.Command{newNodeStatus(), newSync(), newConfirm()}},
		{"The gateway that this runs on:", []*cobra.Command{newJoin(), newEdge(), newReset()}},
		{"Development:", []*cobra.Command{newDev()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newVersion())
	return root
}

// findMistyped finds a word that is no command of its group; cobra checks only the first word, and shows help for the others.
func findMistyped(root *cobra.Command, args []string) error {
	cmd, rest, unknown := root.Find(args)
	if unknown != nil || cmd.Runnable() || cmd.ParseFlags(rest) != nil {
		return nil //nolint:nilerr // cobra says it
	}
	words := cmd.Flags().Args()
	if len(words) == 0 || words[0] == "help" {
		return nil
	}
	hint := fmt.Sprintf("%s --help lists them", cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(words[0]); len(near) > 0 {
		hint = "is it " + strings.Join(near, ", ") + "?"
	}
	return fmt.Errorf("unknown command %q for %q: %s", words[0], cmd.CommandPath(), hint)
}

// versionOutput is the JSON output of frond version.
type versionOutput struct {
	Version string `json:"version"`
}

func newVersion() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := o.asJSON()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), versionOutput{buildinfo.Version()})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Version())
			return err
		},
	}
	o.addFlag(cmd)
	return cmd
}
