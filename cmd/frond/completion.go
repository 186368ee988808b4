package main

import (
	"io"

	"github.com/spf13/cobra"
)

// completeOutput lets the shell complete the words of -o.
func completeOutput(cmd *cobra.Command, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// complete lets the shell complete the name of a part, as the first word; of a gateway it is edgecore's, such as edge-1.
func (c *cluster) complete(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	dev, err := c.open(io.Discard)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return dev.Parts(), cobra.ShellCompDirectiveNoFileComp
}
