package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Output is the flag -o of a command that reads.
type Output string

// AddFlag adds the flag to a command, with its completion, and checks its value before the command runs.
func (o *Output) AddFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "", `"json" for machines`)
	CompleteOutput(cmd, "json")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *o != "" && *o != "json" {
			return fmt.Errorf("--output %q: choose json, or leave it out", string(*o))
		}
		return nil
	}
}

// JSON reports whether JSON is wanted.
func (o Output) JSON() bool { return o == "json" }

// PrintJSON writes the stable output of -o json.
func PrintJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PrintJSONLine writes one line of the output of a command that goes on.
func PrintJSONLine(out io.Writer, v any) error { return json.NewEncoder(out).Encode(v) }

// CompleteOutput completes the values of -o in the shell.
func CompleteOutput(cmd *cobra.Command, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}
