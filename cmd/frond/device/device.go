// Package device holds frond device: what the devices behind gateways report, and what they shall do.
package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
)

// NewCommand returns frond device.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "device", Short: "Show the devices behind gateways, and what they shall do"}
	cmd.AddCommand(newList(), newGet(), newSet())
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

// Status is what is known of a device, and the JSON output.
type Status struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Model     string `json:"model,omitempty"`
	Node      string `json:"node,omitempty"`
	// Generation is the Device's.
	Generation int64 `json:"generation"`
	// State and LastOnline are as the DeviceStatus has them; State is "" if nothing was reported.
	State      string     `json:"state,omitempty"`
	LastOnline string     `json:"lastOnline,omitempty"`
	Properties []Property `json:"properties"`
	// Conditions are Delivered, Accepted and Applied, with the generation that they are about.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Created    time.Time          `json:"created,omitzero"`
}

// Property is one property of a device.
type Property struct {
	Name string `json:"name"`
	// Desired and Reported are nil where there is no value; ReportedAt is the device's time in milliseconds.
	Desired    *string `json:"desired,omitempty"`
	Reported   *string `json:"reported,omitempty"`
	ReportedAt string  `json:"reportedAt,omitempty"`
}

// errNoKinds says that the cluster does not have the kinds of devices.
var errNoKinds = errors.New("the cluster does not have the kinds of devices: frond init installs them")

// statusOf joins a Device with its DeviceStatus, which may be nil.
func statusOf(device *devices.Device, reported *devices.DeviceStatus) Status {
	s := Status{
		Namespace: device.Namespace, Name: device.Name, Node: device.Spec.NodeName, Generation: device.Generation, Created: device.CreationTimestamp.Time,
		Properties: []Property{},
	}
	if device.Spec.DeviceModelRef != nil {
		s.Model = device.Spec.DeviceModelRef.Name
	}
	twins := map[string]devices.Twin{}
	if reported != nil {
		s.State, s.LastOnline = reported.Status.State, reported.Status.LastOnlineTime
		s.Conditions = conditionsOf(reported)
		for _, twin := range reported.Status.Twins {
			twins[twin.PropertyName] = twin
		}
	}
	for _, p := range device.Spec.Properties {
		property := Property{Name: p.Name}
		if p.Desired != nil && p.Desired.Value != "" {
			property.Desired = &p.Desired.Value
		}
		if twin := twins[p.Name]; twin.Reported != nil {
			property.Reported, property.ReportedAt = &twin.Reported.Value, twin.Reported.Metadata["timestamp"]
		}
		s.Properties = append(s.Properties, property)
	}
	return s
}

// conditionsOf reads the conditions from status.extensions.frond.
func conditionsOf(status *devices.DeviceStatus) []metav1.Condition {
	if status.Status.Extensions == nil {
		return nil
	}
	var extensions struct {
		Frond struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"frond"`
	}
	if err := json.Unmarshal(status.Status.Extensions.Raw, &extensions); err != nil {
		return nil // another writer's
	}
	return extensions.Frond.Conditions
}

// condition returns the status of a condition of the present generation, "" if it is not known.
func (s *Status) condition(kind string) metav1.ConditionStatus {
	c := meta.FindStatusCondition(s.Conditions, kind)
	if c == nil || c.ObservedGeneration < s.Generation {
		return ""
	}
	return c.Status
}

// read reads one device; a missing DeviceStatus is no error.
func read(ctx context.Context, client dynamic.Interface, namespace, name string) (*devices.Device, Status, error) {
	var device devices.Device
	if err := get(ctx, client, devices.DevicesResource, namespace, name, &device); err != nil {
		return nil, Status{}, err
	}
	var reported devices.DeviceStatus
	err := get(ctx, client, devices.DeviceStatusesResource, namespace, name, &reported)
	switch {
	case apierrors.IsNotFound(err):
		return &device, statusOf(&device, nil), nil
	case err != nil:
		return nil, Status{}, err
	}
	return &device, statusOf(&device, &reported), nil
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
func list(ctx context.Context, client dynamic.Interface, namespace, node string) ([]Status, error) {
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
	all := make([]Status, 0, len(found.Items))
	for i := range found.Items {
		var device devices.Device
		if err := decode(&found.Items[i], &device); err != nil {
			return nil, err
		}
		all = append(all, statusOf(&device, byName[device.Namespace+"/"+device.Name]))
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return all, nil
}
