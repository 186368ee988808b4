package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/render"
	"github.com/frond-edge/frond/internal/cli"
)

// maxFileBytes bounds a file: an EdgeApplication is an object of Kubernetes, which takes at most 1.5 MiB.
const maxFileBytes = 4 << 20

type renderCommand struct {
	file      string
	namespace string
	groups    []string
	files     []string
	output    cli.Output
}

func newRender() *cobra.Command {
	r := &renderCommand{}
	cmd := &cobra.Command{
		Use:   "render -f FILE",
		Short: "Print the objects that an EdgeApplication makes, without a cluster",
		Long: `Print the objects that an EdgeApplication makes, with the code that cloudcore uses, and without a cluster. The command fails if a part of the
application is not valid, and names the field.

Values of annotations (${group.annotations.KEY}) and groups that the application selects by their labels (frond.io/target-node-groups) come from
NodeGroups in files that --group-file names.`,
		Example: "  frond app render -f shop.yaml --group north",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.Run(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVarP(&r.file, "file", "f", "", "file of the EdgeApplication; - for standard input")
	cmd.Flags().StringVarP(&r.namespace, "namespace", "n", "default", "namespace of an application that names none")
	cmd.Flags().StringSliceVar(&r.groups, "group", nil, "only these targets")
	cmd.Flags().StringSliceVar(&r.files, "group-file", nil, "files of NodeGroups")
	r.output.AddFlag(cmd)
	_ = cmd.MarkFlagRequired("file") // fails only for an unknown flag
	return cmd
}

// Run prints the objects.
func (r *renderCommand) Run(in io.Reader, out io.Writer) error {
	app, err := readApplication(r.file, r.namespace, in)
	if err != nil {
		return err
	}
	groups, err := readGroups(r.files, in)
	if err != nil {
		return err
	}
	result, err := renderAll(app, groups)
	if err != nil {
		return err
	}
	objects := []map[string]any{}
	for _, o := range result.Objects {
		if o.Content != nil && (len(r.groups) == 0 || slices.Contains(r.groups, o.Target)) {
			objects = append(objects, o.Content.Object)
		}
	}
	if err := r.print(objects, out); err != nil {
		return err
	}
	return errors.Join(faultsOf(result)...)
}

func readApplication(file, namespace string, in io.Reader) (*apps.EdgeApplication, error) {
	app := &apps.EdgeApplication{}
	if err := readFile(file, in, app); err != nil {
		return nil, err
	}
	if app.Kind != apps.EdgeApplicationKind {
		return nil, fmt.Errorf("%s holds a %q, not an EdgeApplication", file, app.Kind)
	}
	if app.Namespace == "" {
		app.Namespace = namespace
	}
	return app, nil
}

func readGroups(files []string, in io.Reader) ([]*apps.NodeGroup, error) {
	var groups []*apps.NodeGroup
	for _, file := range files {
		group := &apps.NodeGroup{}
		if err := readFile(file, in, group); err != nil {
			return nil, err
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// renderAll makes the objects of an application as cloudcore does.
func renderAll(app *apps.EdgeApplication, groups []*apps.NodeGroup) (render.Result, error) {
	scope, fault := render.Scope(app, groups)
	if fault != nil {
		return render.Result{}, errors.New(fault.String())
	}
	app = app.DeepCopy()
	app.Spec.WorkloadScope = scope
	return render.Render(app, render.Annotations(groups)), nil
}

func faultsOf(result render.Result) []error {
	var faults []error
	for _, fault := range result.Faults {
		faults = append(faults, errors.New(fault.String()))
	}
	return faults
}

func (r *renderCommand) print(objects []map[string]any, out io.Writer) error {
	if r.output.JSON() {
		return cli.PrintJSON(out, objects)
	}
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "---\n%s", text)
	}
	return nil
}

func readFile(name string, in io.Reader, into any) error {
	from := in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // only read
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFileBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxFileBytes {
		return fmt.Errorf("%s is larger than %d bytes", name, maxFileBytes)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		return fmt.Errorf("understand %s: %w", name, err)
	}
	return nil
}
