// Command frond is Frond's command line: cluster administration (frond init, frond backup, frond check), admission of gateways (frond token, frond
// node, frond ca), the sync state of gateways (frond status, frond sync), devices (frond device), the gateway on which it runs (frond edge, frond join,
// frond reset), load tests (frond loadtest), and development clusters (frond dev).
//
// Each group of commands is a package below this one. The tests here run whole command lines against a control plane.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/cmd/frond/app"
	"github.com/frond-edge/frond/cmd/frond/check"
	"github.com/frond-edge/frond/cmd/frond/device"
	"github.com/frond-edge/frond/cmd/frond/edge"
	"github.com/frond-edge/frond/cmd/frond/installation"
	"github.com/frond-edge/frond/cmd/frond/join"
	"github.com/frond-edge/frond/cmd/frond/loadtest"
	"github.com/frond-edge/frond/cmd/frond/node"
	"github.com/frond-edge/frond/cmd/frond/syncstate"
	"github.com/frond-edge/frond/cmd/frond/token"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newRoot(), args, stdout, stderr)
}

// newRoot returns the whole tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "frond",
		Short: "Frond runs Kubernetes on gateways behind unreliable networks",
		Long: `Frond runs Kubernetes on gateways behind unreliable networks.

Results go to stdout, talk to stderr. Exit codes: 0 done; 1 an error, which says what to do; 2 (join) the machine is not fit, and
nothing was changed, (check) a check failed; 3, 4, 5 (device, edge device) what was asked for did not happen or may not have, see their help; 130 interrupted. frond edge exec and frond dev exec
end with the code of what they run.`,
	}
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Cluster administration:", []*cobra.Command{installation.NewInit(), installation.NewBackup(), check.NewCommand(), token.NewCommand(), node.NewCommand(), installation.NewCA()}},
		{"All gateways, seen from the cloud:", []*cobra.Command{syncstate.NewStatus(), syncstate.NewSync(), syncstate.NewConfirm()}},
		{"Applications on groups of gateways:", []*cobra.Command{app.NewCommand()}},
		{"Devices behind gateways:", []*cobra.Command{device.NewCommand()}},
		{"The gateway that this runs on:", []*cobra.Command{join.NewJoin(), edge.NewCommand(), join.NewReset()}},
		{"Capacity:", []*cobra.Command{loadtest.NewCommand()}},
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

// versionOutput is the JSON output of frond version.
type versionOutput struct {
	Version string `json:"version"`
}

func newVersion() *cobra.Command {
	var o cli.Output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.JSON() {
				return cli.PrintJSON(cmd.OutOrStdout(), versionOutput{buildinfo.Version()})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Version())
			return err
		},
	}
	o.AddFlag(cmd)
	return cmd
}
