// Package kubeflags holds the flags by which the commands of frond reach the cluster, and makes its client of them.
package kubeflags

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// FieldManager is the field manager of frond's commands.
	FieldManager = "frond"
	// Timeout bounds a command that sends a few requests to the cluster.
	Timeout = 30 * time.Second
)

// Flags are those of kubectl.
type Flags struct {
	flags *genericclioptions.ConfigFlags
}

// AddFlags adds the flags to a command.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	f.flags = &genericclioptions.ConfigFlags{
		KubeConfig: new(string), Context: new(string), Impersonate: new(string), ImpersonateGroup: new([]string),
	}
	f.flags.AddFlags(cmd.Flags())
}

// AddNamespacedFlags adds the flags and --namespace.
func (f *Flags) AddNamespacedFlags(cmd *cobra.Command) {
	f.flags = &genericclioptions.ConfigFlags{
		KubeConfig: new(string), Context: new(string), Impersonate: new(string), ImpersonateGroup: new([]string), Namespace: new(string),
	}
	f.flags.AddFlags(cmd.Flags())
}

// Namespace returns the namespace of the flag, else that of the kubeconfig's context.
func (f *Flags) Namespace() (string, error) {
	namespace, _, err := f.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace: %w", err)
	}
	return namespace, nil
}

// RESTConfig returns the configuration of a client without client-side rate limits: a command sends few requests.
func (f *Flags) RESTConfig() (*rest.Config, error) {
	cfg, err := f.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w\n  give --kubeconfig, or set KUBECONFIG", err)
	}
	cfg.QPS = -1
	return cfg, nil
}

// Client returns a client of the cluster.
func (f *Flags) Client() (kubernetes.Interface, error) {
	cfg, err := f.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return client, nil
}
