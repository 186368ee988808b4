package app

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/internal/cli"
)

type statusCommand struct {
	cluster
	output cli.Output
}

func newStatus() *cobra.Command {
	s := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show how far applications are: pods wanted and ready in each target, rollout, faults",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return s.list(cmd.Context(), cmd.OutOrStdout())
			}
			return s.show(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	s.AddNamespacedFlags(cmd)
	s.output.AddFlag(cmd)
	return cmd
}

// Summary is an application in the list, and its JSON.
type Summary struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Targets   int    `json:"targets"`
	Wanted    int32  `json:"wanted"`
	Ready     int32  `json:"ready"`
	Offline   int32  `json:"offline"`
	// Status is Ready's reason, or that of the first condition that is a fault.
	Status  string              `json:"status"`
	Rollout *apps.RolloutStatus `json:"rollout,omitempty"`
}

func summaryOf(app *apps.EdgeApplication) Summary {
	s := Summary{Namespace: app.Namespace, Name: app.Name, Targets: len(app.Status.Targets), Status: "Unknown", Rollout: app.Status.Rollout}
	for _, t := range app.Status.Targets {
		s.Wanted, s.Ready, s.Offline = s.Wanted+t.Wanted, s.Ready+t.Ready, s.Offline+t.Offline
	}
	for _, kind := range []string{"Ready", "Applied", "Valid"} {
		if c := meta.FindStatusCondition(app.Status.Conditions, kind); c != nil && (kind == "Ready" || c.Status == metav1.ConditionFalse) {
			s.Status = c.Reason
		}
	}
	return s
}

func (s *statusCommand) list(ctx context.Context, out io.Writer) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	list, err := c.applications.List(ctx, metav1.ListOptions{})
	if err != nil {
		return explain(err)
	}
	all := []Summary{}
	for i := range list.Items {
		app := &apps.EdgeApplication{}
		if err := decode(list.Items[i].Object, app); err != nil {
			return err
		}
		all = append(all, summaryOf(app))
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, all)
	}
	table := cli.NewTable(out, "NAME", "TARGETS", "WANTED", "READY", "OFFLINE", "STATUS", "ROLLOUT")
	for _, a := range all {
		table.AddRow(a.Name, strconv.Itoa(a.Targets), number(a.Wanted), number(a.Ready), number(a.Offline), a.Status, rolloutText(a.Rollout))
	}
	return table.Print()
}

func number(n int32) string { return strconv.Itoa(int(n)) }

func rolloutText(r *apps.RolloutStatus) string {
	switch {
	case r == nil:
		return ""
	case r.Phase == apps.RolloutCompleted:
		return string(r.Phase)
	}
	return fmt.Sprintf("%s, step %d of %d", r.Phase, r.Step, r.Steps)
}

func (s *statusCommand) show(ctx context.Context, name string, out io.Writer) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	app, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	if s.output.JSON() {
		return cli.PrintJSON(out, app.Status)
	}
	for _, condition := range app.Status.Conditions {
		fmt.Fprintf(out, "%s=%s (%s) %s\n", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	if app.Status.ObservedGeneration != app.Generation {
		fmt.Fprintln(out, "cloudcore has not seen the present specification yet")
	}
	if r := app.Status.Rollout; r != nil {
		fmt.Fprintf(out, "rollout of %s: %s. %s\n", r.Revision, rolloutText(r), r.Message)
	}
	table := cli.NewTable(out, "TARGET", "REVISION", "WANTED", "READY", "OFFLINE")
	for _, t := range app.Status.Targets {
		table.AddRow(t.Name, t.Revision, number(t.Wanted), number(t.Ready), number(t.Offline))
	}
	return table.Print()
}
