package device

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
)

type setter struct {
	cluster
	wait    bool
	timeout time.Duration
}

func newSet() *cobra.Command {
	s := &setter{}
	cmd := &cobra.Command{
		Use:   "set NAME PROPERTY=VALUE...",
		Short: "Set desired values of a device, and wait until it has them",
		Long: `Set desired values of a device in its Device, together. An empty value takes the desired value away. With --wait the command ends when the
device reports all its desired values, and fails when the model does not allow one of them or the time is over. The values are set
all the same: an offline gateway gets them later.

Exit codes with --wait: 0 the device reports each desired value; 3 one of them is rejected; 4 the time is over, and the gateway or the
device is away; 5 the time is over, and the device reports other values.`,
		Example: "  frond device set boiler setpoint=70 --wait",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Run(cmd.Context(), args[0], args[1:], cmd.OutOrStdout())
		},
	}
	s.AddNamespacedFlags(cmd)
	cmd.Flags().BoolVar(&s.wait, "wait", false, "wait until the device reports its desired values")
	cmd.Flags().DurationVar(&s.timeout, "timeout", defaultWait, "how long --wait waits")
	return cmd
}

// Run sets the values.
func (s *setter) Run(ctx context.Context, name string, assignments []string, out io.Writer) error {
	values, err := parseAssignments(assignments)
	if err != nil {
		return err
	}
	client, namespace, err := s.connect()
	if err != nil {
		return err
	}
	generation, err := patch(ctx, client, namespace, name, values)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "device %s/%s: desired values set\n", namespace, name)
	if !s.wait {
		return nil
	}
	if err := awaitApplied(ctx, client, namespace, name, generation, s.timeout); err != nil {
		return err
	}
	fmt.Fprintf(out, "device %s/%s: applied\n", namespace, name)
	return nil
}

// assignment is one PROPERTY=VALUE.
type assignment struct{ property, value string }

func parseAssignments(args []string) ([]assignment, error) {
	var all []assignment
	for _, arg := range args {
		property, value, ok := strings.Cut(arg, "=")
		if !ok || property == "" {
			return nil, fmt.Errorf("%q: want PROPERTY=VALUE", arg)
		}
		if slices.ContainsFunc(all, func(a assignment) bool { return a.property == property }) {
			return nil, fmt.Errorf("property %s is given twice", property)
		}
		all = append(all, assignment{property, value})
	}
	return all, nil
}

// operation is a step of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// operationsFor returns the patch that sets values, and fails if the Device changes before it arrives.
func operationsFor(device *devices.Device, values []assignment) ([]operation, error) {
	var steps []operation
	for _, a := range values {
		i := slices.IndexFunc(device.Spec.Properties, func(p devices.DeviceProperty) bool { return p.Name == a.property })
		if i < 0 {
			names := make([]string, len(device.Spec.Properties))
			for i, p := range device.Spec.Properties {
				names[i] = p.Name
			}
			return nil, fmt.Errorf("the Device has no property %q; it has: %s", a.property, strings.Join(names, ", "))
		}
		path := fmt.Sprintf("/spec/properties/%d", i)
		steps = append(steps, operation{"test", path + "/name", a.property})
		present := device.Spec.Properties[i].Desired
		switch {
		case a.value != "":
			wanted := devices.TwinProperty{Value: a.value}
			if present != nil {
				wanted.Metadata = present.Metadata
			}
			steps = append(steps, operation{"add", path + "/desired", wanted})
		case present != nil:
			steps = append(steps, operation{Op: "remove", Path: path + "/desired"})
		}
	}
	return steps, nil
}

// maxConflicts bounds the tries of a patch while others change the Device.
const maxConflicts = 5

// patch sets values and returns the Device's generation that has them.
func patch(ctx context.Context, client dynamic.Interface, namespace, name string, values []assignment) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	in := client.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)).Namespace(namespace)
	for try := 1; ; try++ {
		var device devices.Device
		if err := get(ctx, client, devices.DevicesResource, namespace, name, &device); err != nil {
			return 0, err
		}
		steps, err := operationsFor(&device, values)
		if err != nil {
			return 0, fmt.Errorf("device %s/%s: %w", namespace, name, err)
		}
		steps = append(steps, operation{"test", "/metadata/resourceVersion", device.ResourceVersion})
		body, err := json.Marshal(steps)
		if err != nil {
			return 0, fmt.Errorf("encode: %w", err)
		}
		changed, err := in.Patch(ctx, name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: kubeflags.FieldManager})
		if err == nil {
			return devices.SpecGeneration(changed), nil
		}
		var now devices.Device
		readErr := get(ctx, client, devices.DevicesResource, namespace, name, &now)
		if changedMeanwhile := readErr == nil && now.ResourceVersion != device.ResourceVersion; !changedMeanwhile && !apierrors.IsConflict(err) || try == maxConflicts {
			return 0, fmt.Errorf("set values of device %s/%s: %w", namespace, name, err)
		}
	}
}
