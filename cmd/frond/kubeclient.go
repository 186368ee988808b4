package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fieldOwner is the field manager of these commands.
const fieldOwner = "frond"

// kube holds the flags to reach the cluster, as kubectl's.
type kube struct {
	flags *genericclioptions.ConfigFlags
}

func (k *kube) addFlags(cmd *cobra.Command) {
	k.flags = &genericclioptions.ConfigFlags{
		KubeConfig: new(string), Context: new(string), Impersonate: new(string), ImpersonateGroup: new([]string),
	}
	k.flags.AddFlags(cmd.Flags())
}

func (k *kube) restConfig() (*rest.Config, error) {
	cfg, err := k.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w\n  give --kubeconfig, or set KUBECONFIG", err)
	}
	cfg.QPS = -1 // a command sends few requests; the server has limits of its own
	return cfg, nil
}

func (k *kube) kubeClient() (kubernetes.Interface, error) {
	cfg, err := k.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return client, nil
}

func (k *kube) dynamicClient() (dynamic.Interface, error) {
	cfg, err := k.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return client, nil
}
