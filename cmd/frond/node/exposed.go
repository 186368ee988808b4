package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/controllers/references"
	"github.com/frond-edge/frond/internal/cli"
)

// exposed lists the objects that a node could read, "NAMESPACE/NAME" each.
type exposed struct {
	Secrets    []string `json:"secrets"`
	ConfigMaps []string `json:"configMaps"`
	// ServiceAccounts are those whose tokens it could request. A token ends with its pod.
	ServiceAccounts []string `json:"serviceAccounts"`
}

// exposedBy lists the objects that a node could read.
func exposedBy(ctx context.Context, kube kubernetes.Interface, node string) (exposed, error) {
	e := exposed{Secrets: []string{}, ConfigMaps: []string{}, ServiceAccounts: []string{}}
	all, err := listExposures(ctx, kube, node)
	if err != nil {
		return e, err
	}
	for _, x := range all {
		name := x.Namespace + "/" + x.Name
		switch {
		case x.Withheld:
		case x.Kind == "Secret":
			e.Secrets = append(e.Secrets, name)
		case x.Kind == "ConfigMap":
			e.ConfigMaps = append(e.ConfigMaps, name)
		case x.Kind == "ServiceAccount":
			e.ServiceAccounts = append(e.ServiceAccounts, name)
		}
	}
	return e, nil
}

// exposure is an object that a node receives because an object there refers to it.
type exposure struct {
	// Kind is Secret, ConfigMap or ServiceAccount; for the last the node can request tokens.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// ReferredBy are the objects that refer to it, "RESOURCE NAMESPACE/NAME" each.
	ReferredBy []string `json:"referredBy"`
	// Withheld is set if the namespace is Frond's own, so cloudcore does not send the object to the node.
	Withheld bool `json:"withheld,omitempty"`
}

// listExposures follows the references of a node's pods, as the delivery does; sorted by kind, namespace and name.
func listExposures(ctx context.Context, kube kubernetes.Interface, node string) ([]exposure, error) {
	pods, err := kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", node, err)
	}
	referrers := map[wire.Key][]string{}
	var next []wire.Key
	follow := func(from wire.Key, to []wire.Key) {
		for _, key := range to {
			if referrers[key] == nil {
				next = append(next, key)
			}
			referrers[key] = append(referrers[key], from.Human())
		}
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		follow(wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}, references.Of(pod))
	}
	for len(next) > 0 {
		key := next[0]
		next = next[1:]
		further, err := refersTo(ctx, kube, key)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read %s: %w", key.Human(), err)
		}
		follow(key, further)
	}
	kinds := map[string]string{"secrets": "Secret", "configmaps": "ConfigMap", "serviceaccounts": "ServiceAccount"}
	all := []exposure{}
	for key, by := range referrers {
		if kind := kinds[key.Resource]; kind != "" {
			slices.Sort(by)
			all = append(all, exposure{Kind: kind, Namespace: key.Namespace, Name: key.Name, ReferredBy: by, Withheld: key.Namespace == names.Namespace})
		}
	}
	slices.SortFunc(all, func(a, b exposure) int {
		return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// refersTo returns the references of an object.
func refersTo(ctx context.Context, kube kubernetes.Interface, key wire.Key) ([]wire.Key, error) {
	var o runtime.Object
	var err error
	switch core := kube.CoreV1(); key.Resource {
	case "serviceaccounts":
		o, err = core.ServiceAccounts(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	case "persistentvolumeclaims":
		o, err = core.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	case "persistentvolumes":
		o, err = core.PersistentVolumes().Get(ctx, key.Name, metav1.GetOptions{})
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return references.Of(o), nil
}

// printExposed prints the objects and what to do about them.
func (e exposed) printExposed(out io.Writer, node string) error {
	for _, part := range []struct {
		what  string
		names []string
	}{
		{"Secrets to change", e.Secrets},
		{"ConfigMaps that were there", e.ConfigMaps},
		{"service accounts whose tokens were there (they end with their pods: kubectl delete pod)", e.ServiceAccounts},
	} {
		if len(part.names) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s:\n  %s\n", part.what, strings.Join(part.names, "\n  ")); err != nil {
			return err
		}
	}
	if len(e.Secrets)+len(e.ConfigMaps)+len(e.ServiceAccounts) == 0 {
		fmt.Fprintf(out, "no pod is bound to %s: nothing of the cluster is known to be there\n", node)
	}
	return nil
}

type nodeExposed struct {
	kubeflags.Flags
	output cli.Output
}

// exposedNode is the JSON output.
type exposedNode struct {
	Node    string     `json:"node"`
	Objects []exposure `json:"objects"`
}

func newExposed() *cobra.Command {
	n := &nodeExposed{}
	cmd := &cobra.Command{
		Use:   "exposed NODE",
		Short: "List the Secrets, ConfigMaps and service accounts that a gateway receives, and why",
		Long: `List the Secrets, ConfigMaps and service accounts that a gateway receives, and the objects that refer to each. An attacker who
controls the gateway can read these Secrets and act as these accounts. Objects marked "withheld" are in Frond's own namespace:
cloudcore delivers them to no gateway, and evicts the pod that refers to them.`,
		Example: "  frond node exposed gw-17",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return n.Run(cmd.Context(), args[0], cmd.OutOrStdout()) },
	}
	n.AddFlags(cmd)
	n.output.AddFlag(cmd)
	return cmd
}

// Run lists the objects that a gateway receives.
func (n *nodeExposed) Run(ctx context.Context, node string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, err := n.Client()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	all, err := listExposures(ctx, client, node)
	if err != nil {
		return err
	}
	if n.output.JSON() {
		return cli.PrintJSON(out, exposedNode{Node: node, Objects: all})
	}
	if len(all) == 0 {
		fmt.Fprintf(out, "no pod of %s refers to a Secret, a ConfigMap or a service account\n", node)
		return nil
	}
	table := cli.NewTable(out, "KIND", "NAMESPACE", "NAME", "REFERRED BY", "NOTE")
	for _, x := range all {
		by, note := x.ReferredBy[0], ""
		if more := len(x.ReferredBy) - 1; more > 0 {
			by += fmt.Sprintf(" and %d more", more)
		}
		if x.Withheld {
			note = "withheld"
		}
		table.AddRow(x.Kind, x.Namespace, x.Name, by, note)
	}
	return table.Print()
}
