package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/devcluster"
)

type storeCommand struct {
	*cluster
	output cli.Output
}

func newStore(c *cluster) *cobra.Command {
	s := &storeCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "store EDGE {list | get RESOURCE [NAMESPACE/]NAME}",
		Short: "Show the objects on a gateway",
		Long: `Show the objects on a gateway. The gateway itself answers, also while its link is cut.
RESOURCE is plural or singular, with its group if it has one: configmap, pods, endpointslices.discovery.k8s.io.`,
		Example: "  frond dev store edge-1 list\n  frond dev store edge-1 get configmap default/web -o json",
		Args:    cobra.MatchAll(cobra.RangeArgs(2, 4), checkStoreArgs),

		ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.output.AddFlag(cmd)
	return cmd
}

func checkStoreArgs(_ *cobra.Command, args []string) error {
	if verb := args[1]; verb == "list" && len(args) == 2 || verb == "get" && len(args) == 4 {
		return nil
	}
	return fmt.Errorf("frond dev store does not understand %q: write EDGE list, or EDGE get RESOURCE [NAMESPACE/]NAME", strings.Join(args, " "))
}

// Run lists the store or gets one object.
func (s *storeCommand) Run(ctx context.Context, args []string, out, talk io.Writer) error {
	dev, err := s.openCluster(talk)
	if err != nil {
		return err
	}
	if args[1] == "list" {
		return s.listObjects(ctx, dev, args[0], out)
	}
	return s.printObject(ctx, dev, args[0], parseKey(args[2], args[3]), out)
}

func (s *storeCommand) listObjects(ctx context.Context, dev *devcluster.Cluster, edge string, out io.Writer) error {
	held, err := dev.Store(ctx, edge)
	if err != nil {
		return err
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, held)
	}
	table := cli.NewTable(out, "OBJECT", "VERSION", "SEQUENCE", "REVISION", "BYTES")
	for _, o := range held.Objects {
		table.AddRow(o.Key().Human(), o.Version, o.Sequence, o.Revision, o.Bytes)
	}
	return table.Print()
}

func (s *storeCommand) printObject(ctx context.Context, dev *devcluster.Cluster, edge string, key wire.Key, out io.Writer) error {
	object, err := dev.StoreGet(ctx, edge, key)
	if err != nil {
		return err
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, object)
	}
	text, err := yaml.JSONToYAML(object)
	if err != nil {
		return fmt.Errorf("understand the object: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// parseKey reads "configmap" or "deployments.apps", and "NAMESPACE/NAME" or "NAME".
func parseKey(resource, name string) wire.Key {
	k := wire.Key{Name: name}
	if ns, n, found := strings.Cut(name, "/"); found {
		k.Namespace, k.Name = ns, n
	}
	k.Resource, k.Group, _ = strings.Cut(strings.ToLower(resource), ".")
	switch {
	case strings.HasSuffix(k.Resource, "ss"): // runtimeclass
		k.Resource += "es"
	case !strings.HasSuffix(k.Resource, "s"):
		k.Resource += "s"
	}
	return k
}
