package main

import (
	"time"

	"github.com/spf13/cobra"
)

// kubeTimeout bounds a command that sends a few requests to the cluster.
const kubeTimeout = 30 * time.Second

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and delete join tokens",
		Long: `Create, list and delete join tokens. They are Kubernetes bootstrap tokens of the group
system:bootstrappers:frond: kubeadm token list shows them, and Kubernetes' token cleaner deletes them when they have expired.`,
	}
	cmd.AddCommand(newTokenCreate(), newTokenList(), newTokenDelete())
	return cmd
}
