// Package token holds frond token: the tokens with which gateways join.
package token

import "github.com/spf13/cobra"

// NewCommand returns frond token.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and delete join tokens",
		Long: `Create, list and delete join tokens. They are Kubernetes bootstrap tokens of the group
system:bootstrappers:frond: kubeadm token list shows them, and Kubernetes' token cleaner deletes them when they have expired.`,
	}
	cmd.AddCommand(newCreate(), newList(), newDelete())
	return cmd
}
