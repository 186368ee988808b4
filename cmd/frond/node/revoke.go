package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install/identities"
)

// revokeTimeout bounds the wait until the Node reports that its links are closed: a second, or more where a server of the hub
// does not answer.
const revokeTimeout = time.Minute

type nodeRevoke struct {
	kubeflags.Flags
	output  cli.Output
	yes     bool
	timeout time.Duration
}

// revokedNode is the JSON output.
type revokedNode struct {
	Node      string    `json:"node"`
	RevokedAt time.Time `json:"revokedAt"`
	Keys      []string  `json:"keys"`
	// LinkClosed reports that cloudcore has closed all links that it knows of. Without a Node it stays false.
	LinkClosed bool `json:"linkClosed"`
	exposed
}

func newRevoke() *cobra.Command {
	n := &nodeRevoke{}
	cmd := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Revoke a gateway: reject its keys permanently, close its links, list what it could read",
		Long: `Revoke a gateway that was stolen or is no longer trusted. Its keys are rejected permanently, under any name, and cloudcore closes
its links. It can join again only with a token for its name (frond token create --node). Pods stay bound to the Node: delete or
drain it.

The command lists the objects that pods bound to the Node refer to. They were readable on the gateway: change these Secrets.
Objects of pods that no longer exist are not listed.`,
		Example: "  frond node revoke gw-17 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return n.Run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	n.AddFlags(cmd)
	n.output.AddFlag(cmd)
	cmd.Flags().BoolVar(&n.yes, "yes", false, "do not ask for confirmation; undone only by a new token")
	cmd.Flags().DurationVar(&n.timeout, "timeout", revokeTimeout, "how long to wait until cloudcore confirms that the links are closed")
	return cmd
}

// Run revokes a gateway.
func (n *nodeRevoke) Run(ctx context.Context, node string, out, talk io.Writer) error {
	if !n.yes {
		return fmt.Errorf("this shuts %s out until it gets a token of its own again: add --yes", node)
	}
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout+n.timeout)
	defer cancel()
	client, err := n.Client()
	if err != nil {
		return err
	}
	cfg, err := n.RESTConfig()
	if err != nil {
		return err
	}
	stored, err := identities.NewClient(cfg)
	if err != nil {
		return err
	}
	spec, err := revokeNode(ctx, stored, client, node, time.Now())
	if err != nil {
		return err
	}
	done := revokedNode{Node: node, RevokedAt: spec.RevokedAt.Time, Keys: spec.Revoked}
	if !n.output.JSON() {
		fmt.Fprintf(talk, "the keys of %s are revoked; waiting for its links to close\n", node)
	}
	var faults [2]error
	done.LinkClosed, faults[0] = n.waitLinksClosed(ctx, client, node)
	done.exposed, faults[1] = exposedBy(ctx, client, node)
	if n.output.JSON() {
		return errors.Join(append(faults[:], cli.PrintJSON(out, done))...)
	}
	switch {
	case done.LinkClosed:
		fmt.Fprintf(talk, "the links of %s are closed\n", node)
	case faults[0] == nil:
		fmt.Fprintf(talk, "there is no Node %s by which cloudcore could say that its links are closed; its log does\n", node)
	}
	return errors.Join(append(faults[:], done.printExposed(out, node))...)
}

// revokeNode records the revocation of a node, and returns the resulting identity. A revoked node stays revoked.
func revokeNode(ctx context.Context, stored dynamic.ResourceInterface, client kubernetes.Interface, node string, now time.Time) (spec identity.NodeIdentitySpec, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := stored.Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			spec, err = revokeUnknown(ctx, stored, client, node, now)
			return err
		}
		if err != nil {
			return err
		}
		id, err := identities.Decode(o)
		if err != nil {
			return err
		}
		spec = withoutKeys(id.Spec, now)
		id.Spec = spec
		if o, err = identities.Encode(id); err == nil {
			_, err = stored.Update(ctx, o, metav1.UpdateOptions{FieldManager: kubeflags.FieldManager})
		}
		return err
	})
	if err != nil {
		return spec, fmt.Errorf("revoke %s: %w", node, err)
	}
	return spec, nil
}

// revokeUnknown revokes a Node that has no identity: its name can then be taken only with a token for it.
func revokeUnknown(ctx context.Context, stored dynamic.ResourceInterface, client kubernetes.Interface, node string, now time.Time) (spec identity.NodeIdentitySpec, err error) {
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return spec, errors.New("there is no such gateway: frond node list shows them")
		}
		return spec, err
	}
	spec = withoutKeys(spec, now)
	o, err := identities.Encode(identity.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: spec})
	if err != nil {
		return spec, err
	}
	_, err = stored.Create(ctx, o, metav1.CreateOptions{FieldManager: kubeflags.FieldManager})
	return spec, identities.ExplainError(err, "write the identity")
}

// withoutKeys returns an identity after its revocation.
func withoutKeys(spec identity.NodeIdentitySpec, now time.Time) identity.NodeIdentitySpec {
	spec.Revoked = slices.Clone(spec.Revoked)
	for _, key := range []string{spec.Key, spec.Previous} {
		if key != "" && !slices.Contains(spec.Revoked, key) {
			spec.Revoked = append(spec.Revoked, key)
		}
	}
	spec.Key, spec.Previous = "", ""
	if spec.RevokedAt == nil {
		spec.RevokedAt = &metav1.Time{Time: now.UTC().Truncate(time.Second)}
	}
	return spec
}

// waitLinksClosed waits until cloudcore reports in the Node that it has closed the links: a silent link may still be open. It returns
// false without an error if there is no Node to report it.
func (n *nodeRevoke) waitLinksClosed(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", node))
	there, closed := true, false
	gone := func(store cache.Store) (bool, error) {
		there = len(store.ListKeys()) > 0
		return !there, nil
	}
	_, err := watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, gone, func(e watch.Event) (bool, error) {
		object, ok := e.Object.(*corev1.Node)
		there = e.Type != watch.Deleted
		closed = there && ok && isRevoked(object)
		return closed || !there, nil
	})
	if err != nil {
		return false, fmt.Errorf("the keys of %s are revoked, but cloudcore did not confirm within %s that its links are closed, so one may still be open: "+
			"see that a cloudcore runs and reaches the hub (kubectl -n %s get pods), and run this again; %w", node, n.timeout, names.Namespace, err)
	}
	return closed, nil
}

// isRevoked recognizes the condition that cloudcore writes once it has closed the links of a revoked gateway.
func isRevoked(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == names.ConditionConnected && c.Status == corev1.ConditionFalse && c.Reason == names.ReasonRevoked
	})
}
