package node

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/identities"
)

// shownKeyLength is the length of a key in the table: enough to tell keys apart.
const shownKeyLength = 12

type nodeList struct {
	kubeflags.Flags
	output string
}

// listedNode is the JSON output.
type listedNode struct {
	Node string `json:"node"`
	// State is "valid"; "renewable": the key has expired, and the gateway may still renew it; "expired"; or "revoked".
	State   string    `json:"state"`
	Key     string    `json:"key,omitempty"`
	Issued  time.Time `json:"issued,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	// LastSeen is the last renewal of the Node's Lease.
	LastSeen  time.Time `json:"lastSeen,omitzero"`
	RevokedAt time.Time `json:"revokedAt,omitzero"`
	// RevokedKeys are rejected permanently.
	RevokedKeys []string `json:"revokedKeys,omitempty"`
}

func newList() *cobra.Command {
	n := &nodeList{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the gateways that have joined: their keys, the keys' expiry, and when each gateway was last seen",
		Long: `List the gateways that have joined. STATE is "valid"; "renewable" when the key has expired and the gateway may still renew it by
itself; "expired" when it needs a new token; "revoked" after frond node revoke.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return n.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	n.AddFlags(cmd)
	cmd.Flags().StringVarP(&n.output, "output", "o", "", `"wide" for whole keys, "json" for machines`)
	cli.CompleteOutput(cmd, "wide", "json")
	return cmd
}

// Run lists the gateways.
func (n *nodeList) Run(ctx context.Context, out, talk io.Writer) error {
	if !slices.Contains([]string{"", "wide", "json"}, n.output) {
		return fmt.Errorf("--output %q: choose wide or json, or leave it out", n.output)
	}
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	now := time.Now()
	nodes, err := n.listNodes(ctx, now)
	if err != nil {
		return err
	}
	if n.output == "json" {
		return cli.PrintJSON(out, nodes)
	}
	if len(nodes) == 0 {
		fmt.Fprintln(talk, "no gateway has joined: frond token create --print-join-command tells how one does")
		return nil
	}
	return n.printTable(nodes, now, out)
}

func (n *nodeList) listNodes(ctx context.Context, now time.Time) ([]listedNode, error) {
	client, err := n.Client()
	if err != nil {
		return nil, err
	}
	cfg, err := n.RESTConfig()
	if err != nil {
		return nil, err
	}
	list, err := identities.List(ctx, cfg)
	if err != nil {
		return nil, err
	}
	window, err := install.RenewWindow(ctx, client)
	if err != nil {
		return nil, err
	}
	leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the leases of nodes: %w", err)
	}
	seen := make(map[string]time.Time, len(leases.Items))
	for i := range leases.Items {
		if at := leases.Items[i].Spec.RenewTime; at != nil {
			seen[leases.Items[i].Name] = at.Time
		}
	}
	nodes := []listedNode{}
	for _, id := range list {
		node := listedNode{
			Node: id.Name, State: identities.StateOf(id.Spec, now, window), Key: id.Spec.Key, Issued: id.Spec.Issued.Time, Expires: id.Spec.Expires.Time,
			LastSeen: seen[id.Name], RevokedKeys: id.Spec.Revoked,
		}
		if id.Spec.RevokedAt != nil {
			node.RevokedAt = id.Spec.RevokedAt.Time
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func (n *nodeList) printTable(nodes []listedNode, now time.Time, out io.Writer) error {
	table := cli.NewTable(out, "NODE", "STATE", "KEY", "ISSUED", "EXPIRES", "LAST SEEN")
	for _, node := range nodes {
		key := cli.OrDash(node.Key)
		if n.output != "wide" && len(key) > shownKeyLength {
			key = key[:shownKeyLength] + "…"
		}
		table.AddRow(node.Node, node.State, key, formatDate(node.Issued), formatDate(node.Expires), cli.FormatAge(node.LastSeen, now))
	}
	return table.Print()
}

func formatDate(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
