package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications/rollout"
	"github.com/frond-edge/frond/internal/cli"
)

// Revision is one specification that an application had, and its JSON.
type Revision struct {
	Number  int64     `json:"number"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Present marks that of the present specification.
	Present bool `json:"present"`
	spec    json.RawMessage
}

// revisionsOf returns the revisions of an application, the newest first.
func (c clients) revisionsOf(ctx context.Context, app *apps.EdgeApplication) ([]Revision, error) {
	list, err := c.kube.AppsV1().ControllerRevisions(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: rollout.LabelApplication + "=" + rollout.LabelValue(app.Name)})
	if err != nil {
		return nil, err
	}
	present, err := rollout.RevisionName(app.Name, app.Spec)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(b.Revision - a.Revision) })
	var all []Revision
	for _, o := range list.Items {
		if metav1.IsControlledBy(&o, app) {
			all = append(all, Revision{Number: o.Revision, Name: o.Name, Created: o.CreationTimestamp.Time, Present: o.Name == present, spec: o.Data.Raw})
		}
	}
	return all, nil
}

type historyCommand struct {
	cluster
	output cli.Output
}

func newHistory() *cobra.Command {
	h := &historyCommand{}
	cmd := &cobra.Command{
		Use: "history NAME", Short: "List the earlier specifications of an application", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return h.Run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	h.AddNamespacedFlags(cmd)
	h.output.AddFlag(cmd)
	return cmd
}

// Run lists the revisions.
func (h *historyCommand) Run(ctx context.Context, name string, out io.Writer) error {
	c, err := h.connect()
	if err != nil {
		return err
	}
	app, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	all, err := c.revisionsOf(ctx, app)
	if err != nil {
		return err
	}
	if h.output.JSON() {
		return cli.PrintJSON(out, all)
	}
	table := cli.NewTable(out, "NUMBER", "REVISION", "CREATED", "")
	for _, r := range all {
		mark := ""
		if r.Present {
			mark = "present"
		}
		table.AddRow(strconv.FormatInt(r.Number, 10), r.Name, r.Created.UTC().Format(time.RFC3339), mark)
	}
	return table.Print()
}

type undoCommand struct {
	cluster
	to string
}

func newUndo() *cobra.Command {
	u := &undoCommand{}
	cmd := &cobra.Command{
		Use:   "undo NAME",
		Short: "Give an application an earlier specification again",
		Long: `Give an application the specification before the present one again, or that of --to, a number or name of frond app history. If it is the one
that all groups had before the rollout in progress, all get it back at once. Otherwise it is rolled out in the plan's steps.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return u.Run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	u.AddNamespacedFlags(cmd)
	cmd.Flags().StringVar(&u.to, "to", "", "the revision, by number or name")
	return cmd
}

// Run replaces the specification, if it has not changed meanwhile.
func (u *undoCommand) Run(ctx context.Context, name string, out io.Writer) error {
	c, err := u.connect()
	if err != nil {
		return err
	}
	app, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	all, err := c.revisionsOf(ctx, app)
	if err != nil {
		return err
	}
	to, err := chooseRevision(app, all, u.to)
	if err != nil {
		return err
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": app.ResourceVersion}, {"op": "replace", "path": "/spec", "value": to.spec},
	})
	if err != nil {
		return err
	}
	if _, err := c.applications.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("the application changed meanwhile, look at it and run the command again: %w", err)
	}
	fmt.Fprintf(out, "EdgeApplication %s/%s has the specification of %s again\n", c.namespace, name, to.Name)
	return nil
}

// chooseRevision returns the wanted revision, or the one to go back to: the stable one of a rollout, else the newest but the present one.
func chooseRevision(app *apps.EdgeApplication, all []Revision, wanted string) (Revision, error) {
	if wanted == "" {
		if r := app.Status.Rollout; r != nil && r.Phase != apps.RolloutCompleted && r.StableRevision != "" {
			wanted = r.StableRevision
		}
	}
	for _, r := range all {
		if wanted == "" && !r.Present || wanted != "" && (r.Name == wanted || strconv.FormatInt(r.Number, 10) == wanted) {
			if r.Present {
				return r, fmt.Errorf("%s is the present specification", r.Name)
			}
			return r, nil
		}
	}
	if wanted == "" {
		return Revision{}, errors.New("there is no earlier specification")
	}
	return Revision{}, fmt.Errorf("there is no revision %s: frond app history %s lists them", wanted, app.Name)
}

// annotator sets one annotation of an application.
type annotator struct {
	cluster
	force bool
}

func (a *annotator) set(ctx context.Context, name, done string, out io.Writer, annotation func(*apps.EdgeApplication) (key, value string, err error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	app, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	key, value, err := annotation(app)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		return err
	}
	if _, err := c.applications.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	fmt.Fprintf(out, "EdgeApplication %s/%s: %s\n", c.namespace, name, done)
	return nil
}

func newPause() *cobra.Command {
	return newPauser("pause", "Hold the rollout of an application where it is", "true")
}

func newResume() *cobra.Command {
	return newPauser("resume", "Let the rollout of an application go on", "false")
}

func newPauser(verb, short, paused string) *cobra.Command {
	a := &annotator{}
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.set(cmd.Context(), args[0], verb+"d", cmd.OutOrStdout(), func(*apps.EdgeApplication) (string, string, error) {
				return names.AnnotationRolloutPaused, paused, nil
			})
		},
	}
	a.AddNamespacedFlags(cmd)
	return cmd
}

func newApprove() *cobra.Command {
	a := &annotator{}
	cmd := &cobra.Command{
		Use:   "approve NAME",
		Short: "Let the rollout of an application take its next step",
		Long: `Let the rollout of an application take its next step, once the pods of the present step are ready. With --force it does so at once, whatever
they are. The approval is for this step of this revision only.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.set(cmd.Context(), args[0], "approved", cmd.OutOrStdout(), func(app *apps.EdgeApplication) (string, string, error) {
				r := app.Status.Rollout
				if r == nil || r.Phase == apps.RolloutCompleted {
					return "", "", errors.New("no rollout is in progress")
				}
				return names.AnnotationRolloutApproved, rollout.FormatApproval(r.Revision, r.Step, a.force), nil
			})
		},
	}
	a.AddNamespacedFlags(cmd)
	cmd.Flags().BoolVar(&a.force, "force", false, "also if the pods of the step are not ready")
	return cmd
}
