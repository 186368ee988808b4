package main

import (
	"io"

	"github.com/spf13/cobra"
)

// completeOutput completes the values of -o in the shell.
func completeOutput(cmd *cobra.Command, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// completePart completes the name of a component, as the first argument; edge-1 is the edgecore of a gateway.
func (c *cluster) completePart(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	dev, err := c.openCluster(io.Discard)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return dev.Components(), cobra.ShellCompDirectiveNoFileComp
}
