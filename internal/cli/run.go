// Package cli is what Frond's command lines share: how one runs and ends, its exit codes, the flag -o, and tables.
package cli

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
)

// ExitError ends a command line with a message that is printed as it is, if there is one, and an exit code.
type ExitError struct {
	Message string
	Code    int
}

// Error implements error.
func (f *ExitError) Error() string { return f.Message }

// interruptedCode is what shells expect of a program that SIGINT ended: 128 + SIGINT.
const interruptedCode = 130

// Run executes one command line until it ends or a signal asks it to, and returns its exit code. Results go to stdout, messages to stderr.
func Run(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // the programs' main call this alone
	defer stop()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SilenceUsage, root.SilenceErrors = true, true // the error alone is printed, below
	err := findMistyped(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintln(stderr, "interrupted")
		return interruptedCode
	}
	if failed, ok := errors.AsType[*ExitError](err); ok {
		if failed.Message != "" {
			_, _ = fmt.Fprintln(stderr, strings.TrimSuffix(failed.Message, "\n"))
		}
		return failed.Code
	}
	_, _ = fmt.Fprintln(stderr, "error:", err)
	return 1
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
