package main

import (
	"io"

	"github.com/spf13/cobra"
)

// completeOutput lets the shell complete the words of -o.
func completeOutput(cmd *cobra.Command, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// completePart lets the shell complete the name of a part, as the first word; of a gateway it is edgecore's, such as edge-1.
func (c *cluster) completePart(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	dev, err := c.openCluster(io.Discard)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return dev.Components(), cobra.ShellCompDirectiveNoFileComp
}
