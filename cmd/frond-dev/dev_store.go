package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/cli"
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
		Args:    cobra.RangeArgs(2, 4),

		ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.output.AddFlag(cmd)
	return cmd
}

// Run lists the store or gets one object.
func (s *storeCommand) Run(ctx context.Context, args []string, out, talk io.Writer) error {
	switch edge, verb := args[0], args[1]; {
	case verb == "list" && len(args) == 2:
		return s.listObjects(ctx, edge, out, talk)
	case verb == "get" && len(args) == 4:
		return s.printObject(ctx, edge, parseKey(args[2], args[3]), out, talk)
	default:
		return fmt.Errorf("frond dev store does not understand %q: write EDGE list, or EDGE get RESOURCE [NAMESPACE/]NAME",
			strings.Join(args, " "))
	}
}

func (s *storeCommand) listObjects(ctx context.Context, edge string, out, talk io.Writer) error {
	asJSON, err := s.output.AsJSON()
	if err != nil {
		return err
	}
	dev, err := s.openCluster(talk)
	if err != nil {
		return err
	}
	held, err := dev.Store(ctx, edge)
	if err != nil {
		return err
	}
	if asJSON {
		return cli.PrintJSON(out, held)
	}
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "OBJECT\tVERSION\tSEQUENCE\tREVISION\tBYTES")
	for _, o := range held.Objects {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\n", o.Key().Human(), o.Version, o.Sequence, o.Revision, o.Bytes)
	}
	return t.Flush()
}

func (s *storeCommand) printObject(ctx context.Context, edge string, key wire.Key, out, talk io.Writer) error {
	asJSON, err := s.output.AsJSON()
	if err != nil {
		return err
	}
	dev, err := s.openCluster(talk)
	if err != nil {
		return err
	}
	object, err := dev.StoreGet(ctx, edge, key)
	if err != nil {
		return err
	}
	if asJSON {
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
