package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// exposed is what a node could read, "NAMESPACE/NAME" each.
type exposed struct {
	Secrets    []string `json:"secrets"`
	ConfigMaps []string `json:"configMaps"`
	// ServiceAccounts are those whose tokens it could ask for. A token ends with its pod.
	ServiceAccounts []string `json:"serviceAccounts"`
}

// exposedBy follows what the pods of a node refer to, as what delivers it does.
func exposedBy(ctx context.Context, kube kubernetes.Interface, node string) (exposed, error) {
	e := exposed{Secrets: []string{}, ConfigMaps: []string{}, ServiceAccounts: []string{}}
	pods, err := kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return e, fmt.Errorf("list the pods of %s: %w", node, err)
	}
	var next []wire.Key
	for i := range pods.Items {
		next = append(next, desired.References(&pods.Items[i])...)
	}
	for done := map[wire.Key]bool{}; len(next) > 0; {
		key := next[0]
		next = next[1:]
		if done[key] {
			continue
		}
		done[key] = true
		name := key.Namespace + "/" + key.Name
		switch key.Resource {
		case "secrets":
			e.Secrets = append(e.Secrets, name)
		case "configmaps":
			e.ConfigMaps = append(e.ConfigMaps, name)
		case "serviceaccounts":
			e.ServiceAccounts = append(e.ServiceAccounts, name)
		}
		further, err := refersTo(ctx, kube, key)
		if err != nil && !apierrors.IsNotFound(err) {
			return e, fmt.Errorf("read %s %s: %w", key.Resource, name, err)
		}
		next = append(next, further...)
	}
	for _, names := range [][]string{e.Secrets, e.ConfigMaps, e.ServiceAccounts} {
		slices.Sort(names)
	}
	return e, nil
}

// refersTo reads an object that may lead to others.
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
	return desired.References(o), nil
}

// print says what to do about it.
func (e exposed) print(out io.Writer, node string) error {
	for _, part := range []struct {
		what  string
		names []string
	}{
		{"Secrets to change", e.Secrets}, {"ConfigMaps that were there", e.ConfigMaps},
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
