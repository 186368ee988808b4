package syncstate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
)

type confirmCommand struct {
	kubeflags.Flags
	all    bool
	output cli.Output
}

// confirmedNode is one line of the output.
type confirmedNode struct {
	Node string `json:"node"`
	wire.Hold
}

// NewConfirm returns frond confirm.
func NewConfirm() *cobra.Command {
	c := &confirmCommand{}
	cmd := &cobra.Command{
		Use:   "confirm {NODE … | --all-held}",
		Short: "Confirm the deletions that the mass-delete guard holds for a gateway",
		Long: `Confirm the deletions that the mass-delete guard holds for a gateway: pods that no longer exist in Kubernetes, and objects that
only they needed. The Node's events and its condition EdgeDeletionsHeld list them. Only deletions held now are confirmed, not
later ones. It needs the right to patch the Node.`,
		Example: "  frond confirm gw-17\n  frond confirm --all-held -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.Run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd)
	cmd.Flags().BoolVar(&c.all, "all-held", false, "confirm for every gateway with held deletions")
	c.output.AddFlag(cmd)
	return cmd
}

// Run confirms the held deletions of the named nodes, or of all.
func (c *confirmCommand) Run(ctx context.Context, listed []string, out, talk io.Writer) error {
	if c.all == (len(listed) > 0) {
		return errors.New("name the gateways, or write --all-held")
	}
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, err := c.Client()
	if err != nil {
		return err
	}
	nodes, err := c.selectNodes(ctx, client, listed)
	if err != nil {
		return err
	}
	done := []confirmedNode{}
	var faults []error
	for _, node := range nodes {
		hold, _ := wire.ParseHold(node.Annotations)
		if hold.Token == "" {
			if !c.all {
				faults = append(faults, fmt.Errorf("nothing is held back for %s", node.Name))
			}
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationConfirmDeletions, hold.Token)
		if _, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kubeflags.FieldManager}); err != nil {
			faults = append(faults, fmt.Errorf("confirm for %s: %w", node.Name, err))
			continue
		}
		done = append(done, confirmedNode{Node: node.Name, Hold: hold})
	}
	return errors.Join(append(faults, c.printConfirmed(done, out, talk))...)
}

func (c *confirmCommand) selectNodes(ctx context.Context, client kubernetes.Interface, listed []string) ([]corev1.Node, error) {
	if c.all {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the nodes: %w", err)
		}
		return list.Items, nil
	}
	var nodes []corev1.Node
	for _, name := range listed {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no node %s: kubectl get nodes shows them", name)
		}
		if err != nil {
			return nil, fmt.Errorf("read node %s: %w", name, err)
		}
		nodes = append(nodes, *node)
	}
	return nodes, nil
}

func (c *confirmCommand) printConfirmed(done []confirmedNode, out, talk io.Writer) error {
	if c.output.JSON() {
		return cli.PrintJSON(out, done)
	}
	if len(done) == 0 {
		if c.all {
			_, _ = fmt.Fprintln(talk, "nothing is held back") // a write error cannot be reported
		}
		return nil
	}
	table := cli.NewTable(out, "NODE", "REASON", "PODS", "CONFIRMED")
	for _, d := range done {
		table.AddRow(d.Node, d.Reason, fmt.Sprintf("%d of %d", d.Missing, d.Pods), d.Token)
	}
	return table.Print()
}
