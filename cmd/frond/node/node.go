// Package node holds frond node: which gateways have joined, what they receive, and the revocation of one.
package node

import "github.com/spf13/cobra"

// NewCommand returns frond node.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "List the gateways that have joined and what they receive, and revoke one",
	}
	cmd.AddCommand(newExposed(), newList(), newRevoke())
	return cmd
}
