// Package device holds frond device: what the devices behind gateways report, and what they shall do.
package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
)

// NewCommand returns frond device.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "device", Short: "Show the devices behind gateways, and what they shall do"}
	cmd.AddCommand(newList(), newGet(), newWatch(), newSet(), newCall())
	return cmd
}

// cluster reads and writes devices.
type cluster struct {
	kubeflags.Flags
	all bool
}

// connect returns the client and the namespace, which is "" for all.
func (c *cluster) connect() (dynamic.Interface, string, error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return nil, "", err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("reach the cluster: %w", err)
	}
	if c.all {
		return client, "", nil
	}
	namespace, err := c.Namespace()
	return client, namespace, err
}

// errNoKinds says that the cluster does not have the kinds of devices.
var errNoKinds = errors.New("the cluster does not have the kinds of devices: frond init installs them")

// read reads one device; a missing DeviceStatus is no error.
func read(ctx context.Context, client dynamic.Interface, namespace, name string) (deviceview.Device, error) {
	var device devices.Device
	if err := get(ctx, client, devices.DevicesResource, namespace, name, &device); err != nil {
		return deviceview.Device{}, err
	}
	var reported devices.DeviceStatus
	err := get(ctx, client, devices.DeviceStatusesResource, namespace, name, &reported)
	switch {
	case apierrors.IsNotFound(err):
		return deviceview.New(&device, nil), nil
	case err != nil:
		return deviceview.Device{}, err
	}
	return deviceview.New(&device, &reported), nil
}

func get(ctx context.Context, client dynamic.Interface, resource, namespace, name string, into any) error {
	o, err := client.Resource(devices.GroupVersion().WithResource(resource)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return decode(o, into)
}

func decode(o *unstructured.Unstructured, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		return fmt.Errorf("read %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	if device, ok := into.(*devices.Device); ok {
		device.Generation = devices.SpecGeneration(o) // its gateway hears nothing of copies of its status
	}
	return nil
}

// list reads the devices of a namespace, "" for all, and of a node, "" for all; sorted by namespace and name.
func list(ctx context.Context, client dynamic.Interface, namespace, node string) ([]deviceview.Device, error) {
	options := metav1.ListOptions{}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	found, err := client.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)).Namespace(namespace).List(ctx, options)
	if apierrors.IsNotFound(err) {
		return nil, errNoKinds
	}
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	reports, err := client.Resource(devices.GroupVersion().WithResource(devices.DeviceStatusesResource)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the status of devices: %w", err)
	}
	byName := map[string]*devices.DeviceStatus{}
	for i := range reports.Items {
		status := &devices.DeviceStatus{}
		if err := decode(&reports.Items[i], status); err != nil {
			return nil, err
		}
		byName[status.Namespace+"/"+status.Name] = status
	}
	all := make([]deviceview.Device, 0, len(found.Items))
	for i := range found.Items {
		var device devices.Device
		if err := decode(&found.Items[i], &device); err != nil {
			return nil, err
		}
		all = append(all, deviceview.New(&device, byName[device.Namespace+"/"+device.Name]))
	}
	slices.SortFunc(all, func(a, b deviceview.Device) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all, nil
}
