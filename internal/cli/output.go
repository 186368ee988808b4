package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Output is the flag -o of a command that reads.
type Output string

// AddFlag adds the flag to a command, with its completion.
func (o *Output) AddFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "", `"json" for machines`)
	CompleteOutput(cmd, "json")
}

// AsJSON reports whether JSON is wanted, and fails for a value that is none.
func (o Output) AsJSON() (bool, error) {
	switch o {
	case "":
		return false, nil
	case "json":
		return true, nil
	default:
		return false, fmt.Errorf("--output %q: choose json, or leave it out", string(o))
	}
}

// PrintJSON writes the stable output of -o json.
func PrintJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// CompleteOutput completes the values of -o in the shell.
func CompleteOutput(cmd *cobra.Command, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}
