package installation

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/identities"
)

// NewCA returns frond ca.
func NewCA() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Replace the CA that signs the hub's certificates",
	}
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the CA in three steps: add, switch, drop",
		Long: `Replace the CA that signs the hub's certificates, without closing a link. Each step may be run again.

  add      creates the next CA. Gateways receive it when they renew their keys, so allow time for that.
  switch   reissues all certificates from the next CA; both are trusted.
  drop     ends the trust in the previous CA; before switch, it cancels the change.

After each step the hub's servers must reload their files (SIGHUP), once Kubernetes has updated them. cloudcores reload by
themselves.`,
	}
	rotate.AddCommand(
		newCARotate(install.StepAdd, "Make the next authority, and tell gateways to believe both"),
		newCARotate(install.StepSwitch, "Let the next authority sign, and make all certificates again"),
		newCARotate(install.StepDrop, "Believe the authority before this one no more"),
	)
	cmd.AddCommand(rotate)
	return cmd
}

type caRotate struct {
	kubeflags.Flags
	step    install.Step
	options install.Options
	force   bool
	output  cli.Output
}

func newCARotate(step install.Step, short string) *cobra.Command {
	c := &caRotate{step: step}
	cmd := &cobra.Command{
		Use:   string(step),
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd)
	c.output.AddFlag(cmd)
	cmd.Flags().BoolVar(&c.options.DryRun, "dry-run", false, "only say what would be done")
	if step == install.StepSwitch {
		cmd.Flags().BoolVar(&c.force, "force", false, "also if gateways have not received the next CA")
	}
	return cmd
}

// Run takes the step.
func (c *caRotate) Run(ctx context.Context, out, talk io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	cfg, err := c.RESTConfig()
	if err != nil {
		return err
	}
	if c.step == install.StepSwitch && !c.force {
		if err := c.checkRenewed(ctx); err != nil {
			return err
		}
	}
	report, err := install.Rotate(ctx, cfg, c.step, c.options, time.Now())
	if err != nil {
		return err
	}
	if c.output.JSON() {
		return cli.PrintJSON(out, report)
	}
	if err := printReport(report, c.options.DryRun, out, talk); err != nil || report.Changed() == 0 || c.options.DryRun {
		return err
	}
	fmt.Fprintln(talk, map[install.Step]string{
		install.StepAdd:    "next: let the hub's servers read their files again; when gateways have renewed their keys, frond ca rotate switch",
		install.StepSwitch: "next: let the hub's servers read their files again; when all links are back, frond ca rotate drop. Join commands from before name another authority: make new tokens",
		install.StepDrop:   "next: let the hub's servers read their files again",
	}[c.step])
	return nil
}

// checkRenewed refuses the next step while some gateways would not trust the next CA.
func (c *caRotate) checkRenewed(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	rollover, err := install.ReadRollover(ctx, client)
	if err != nil || rollover.Next == "" {
		return err // the step's own error says what is missing
	}
	late, err := c.listNotRenewed(ctx, client, rollover.KnownSince())
	if err != nil {
		return err
	}
	if len(late) > 0 {
		const shown = 10
		names := strings.Join(late[:min(shown, len(late))], ", ")
		if len(late) > shown {
			names += ", …"
		}
		return fmt.Errorf("%d gateways have not renewed their keys since %s, and may not know the next authority: %s\n"+
			"  wait until they have (frond node list), or add --force: the authority before vouches\n"+
			"  for the next as long as it is good itself, so they come back; one that was made by an earlier Frond cannot, and they will need a token",
			len(late), rollover.KnownSince().UTC().Format(time.RFC3339), names)
	}
	return nil
}

// listNotRenewed returns the gateways that may still renew their keys and have not done so since a time.
func (c *caRotate) listNotRenewed(ctx context.Context, client kubernetes.Interface, since time.Time) (late []string, err error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	nodes, err := identities.List(ctx, cfg)
	if err != nil {
		return nil, err
	}
	window, err := install.RenewWindow(ctx, client)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, node := range nodes {
		state := identities.StateOf(node.Spec, now, window)
		if (state == identities.Valid || state == identities.Renewable) && node.Spec.Issued.Time.Before(since) {
			late = append(late, node.Name)
		}
	}
	return late, nil
}
