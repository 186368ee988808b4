package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/render"
	"github.com/frond-edge/frond/internal/cli"
)

// differentCode is the exit code of frond app diff where it prints something.
const differentCode = 3

type diffCommand struct {
	cluster
	file   string
	to     string
	output cli.Output
}

func newDiff() *cobra.Command {
	d := &diffCommand{}
	cmd := &cobra.Command{
		Use:   "diff (NAME | -f FILE)",
		Short: "Show what a file, or an earlier specification, would change in an application's objects",
		Long: `Show what would change in the objects of an application: with -f, if the file were applied; with a name, if frond app undo went back to the revision of
--to, by default the one before the present.

Both sides are made by the code that cloudcore uses, so what Kubernetes adds is not shown, nor what somebody else has changed (frond app status tells
that). Exit codes: 0 nothing would change; 3 something would; 1 an error.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (d.file != "") {
				return errors.New("give either the name of an application or -f FILE")
			}
			return d.Run(cmd.Context(), strings.Join(args, ""), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	d.AddNamespacedFlags(cmd)
	cmd.Flags().StringVarP(&d.file, "file", "f", "", "file of the EdgeApplication; - for standard input")
	cmd.Flags().StringVar(&d.to, "to", "", "the revision, by number or name")
	d.output.AddFlag(cmd)
	return cmd
}

// Run prints the differences.
func (d *diffCommand) Run(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	c, err := d.connect()
	if err != nil {
		return err
	}
	var before, after *apps.EdgeApplication
	if d.file != "" {
		before, after, err = fileSides(ctx, c, d.file, in)
	} else {
		before, after, err = revisionSides(ctx, c, name, d.to)
	}
	if err != nil {
		return err
	}
	groups, err := listGroups(ctx, c)
	if err != nil {
		return err
	}
	was, err := renderAll(before, groups)
	if err != nil {
		return err
	}
	will, err := renderAll(after, groups)
	if err != nil {
		return err
	}
	changes := compare(was, will)
	if err := printChanges(d.output, changes, out); err != nil {
		return err
	}
	if faults := faultsOf(will); len(faults) > 0 {
		return errors.Join(faults...)
	}
	if len(changes) > 0 {
		return &cli.ExitError{Code: differentCode}
	}
	return nil
}

// fileSides returns the application in the cluster, an empty one if there is none, and that of a file.
func fileSides(ctx context.Context, c clients, file string, in io.Reader) (before, after *apps.EdgeApplication, err error) {
	if after, err = readApplication(file, c.namespace, in); err != nil {
		return nil, nil, err
	}
	c.applications = c.in(after.Namespace)
	before, err = c.get(ctx, after.Name)
	if apierrors.IsNotFound(err) && hasName(err) {
		before, err = &apps.EdgeApplication{ObjectMeta: metav1.ObjectMeta{Namespace: after.Namespace, Name: after.Name}}, nil
	}
	return before, after, err
}

// revisionSides returns the application in the cluster, and the same with an earlier specification.
func revisionSides(ctx context.Context, c clients, name, to string) (before, after *apps.EdgeApplication, err error) {
	if before, err = c.get(ctx, name); err != nil {
		return nil, nil, err
	}
	all, err := c.revisionsOf(ctx, before)
	if err != nil {
		return nil, nil, err
	}
	revision, err := chooseRevision(before, all, to)
	if err != nil {
		return nil, nil, err
	}
	after = before.DeepCopy()
	after.Spec = apps.EdgeApplicationSpec{}
	if err := json.Unmarshal(revision.spec, &after.Spec); err != nil {
		return nil, nil, fmt.Errorf("understand revision %s: %w", revision.Name, err)
	}
	return before, after, nil
}

// listGroups returns all NodeGroups.
func listGroups(ctx context.Context, c clients) ([]*apps.NodeGroup, error) {
	list, err := c.objects.Resource(apps.GroupVersion().WithResource(apps.NodeGroupsResource)).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the NodeGroups: %w", err)
	}
	var groups []*apps.NodeGroup
	for i := range list.Items {
		group := &apps.NodeGroup{}
		if err := decode(list.Items[i].Object, group); err != nil {
			return nil, err
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// Change is what would happen to one object, and its JSON.
type Change struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Change is added, removed or changed. Removed objects are deleted.
	Change string        `json:"change"`
	Fields []FieldChange `json:"fields"`
}

// FieldChange is a field that differs; a side that does not have it is null.
type FieldChange struct {
	Path   string `json:"path"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// compare returns the differences of two sets of objects, in the order of their identities. An object that cannot be made stays as it is.
func compare(before, after render.Result) []Change {
	was, is := byID(before), byID(after)
	ids := slices.SortedFunc(maps.Keys(maps.Collect(allOf(was, is))), func(a, b render.ID) int {
		return strings.Compare(a.String()+a.Group, b.String()+b.Group)
	})
	changes := []Change{}
	for _, id := range ids {
		old, had := was[id]
		next, has := is[id]
		if had && old == nil || has && next == nil { // cannot be made
			continue
		}
		c := Change{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, Change: "changed", Fields: compareFields(old, next)}
		switch {
		case !had:
			c.Change = "added"
		case !has && !after.Complete:
			continue // nothing is deleted then
		case !has:
			c.Change = "removed"
		case len(c.Fields) == 0:
			continue
		}
		changes = append(changes, c)
	}
	return changes
}

func allOf(all ...map[render.ID]map[string]any) func(yield func(render.ID, bool) bool) {
	return func(yield func(render.ID, bool) bool) {
		for _, objects := range all {
			for id := range objects {
				if !yield(id, true) {
					return
				}
			}
		}
	}
}

func byID(result render.Result) map[render.ID]map[string]any {
	objects := map[render.ID]map[string]any{}
	for _, o := range result.Objects {
		objects[o.ID] = nil
		if o.Content != nil {
			objects[o.ID] = o.Content.Object
		}
	}
	return objects
}

// compareFields returns the fields without fields of their own that differ. The items of a list are compared by their position.
func compareFields(before, after map[string]any) []FieldChange {
	was, is := map[string]any{}, map[string]any{}
	flatten("", before, was)
	flatten("", after, is)
	paths := map[string]bool{}
	for _, fields := range []map[string]any{was, is} {
		for path := range fields {
			paths[path] = true
		}
	}
	changes := []FieldChange{}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if fmt.Sprint(was[path]) != fmt.Sprint(is[path]) {
			changes = append(changes, FieldChange{Path: path, Before: was[path], After: is[path]})
		}
	}
	return changes
}

func flatten(path string, value any, into map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			flatten(path+"."+key, v[key], into)
		}
		if len(v) == 0 && path != "" {
			into[path[1:]] = v
		}
	case []any:
		for i := range v {
			flatten(path+"["+strconv.Itoa(i)+"]", v[i], into)
		}
		if len(v) == 0 {
			into[path[1:]] = v
		}
	default:
		into[path[1:]] = value
	}
}

func printChanges(output cli.Output, changes []Change, out io.Writer) error {
	if output.JSON() {
		return cli.PrintJSON(out, changes)
	}
	for _, c := range changes {
		fmt.Fprintf(out, "%s %s/%s %s\n", c.Kind, c.Namespace, c.Name, c.Change)
		if c.Change == "removed" {
			continue
		}
		for _, f := range c.Fields {
			for _, side := range []struct {
				sign  string
				value any
			}{{"-", f.Before}, {"+", f.After}} {
				if side.value == nil {
					continue
				}
				text, err := json.Marshal(side.value)
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "  %s %s: %s\n", side.sign, f.Path, text)
			}
		}
	}
	return nil
}
