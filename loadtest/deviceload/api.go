package deviceload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/loadtest/mapperrun"
	"github.com/frond-edge/frond/loadtest/workload"
)

// deviceAPI writes the Devices of one gateway to Kubernetes, and reads how many such writes the apiserver has served.
type deviceAPI struct {
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	edge    string
}

const (
	pumpModel  = "load-pump"
	motorModel = "load-motor"
	// motorCycle is how often a motor reports, in milliseconds.
	motorCycle = 100
)

func (a deviceAPI) resource(name string) dynamic.ResourceInterface {
	return a.dynamic.Resource(devices.GroupVersion().WithResource(name)).Namespace(workload.Namespace)
}

// createModel creates a DeviceModel with a sample and a setpoint.
func (a deviceAPI) createModel(ctx context.Context, name, protocol string) error {
	property := func(name, mode string) any { return map[string]any{"name": name, "type": "INT", "accessMode": mode} }
	spec := map[string]any{"protocol": protocol, "properties": []any{property(sensor.Sample, "ReadOnly"), property(sensor.Setpoint, "ReadWrite")}}
	return a.create(ctx, devices.DeviceModelsResource, devices.DeviceModelKind, name, spec)
}

func (a deviceAPI) create(ctx context.Context, resource, kind, name string, spec map[string]any) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devices.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if _, err := a.resource(resource).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make %s %s: %w", kind, name, err)
	}
	return nil
}

// createPumps creates Devices of MQTT clients.
func (a deviceAPI) createPumps(ctx context.Context, names []string) error {
	if err := a.createModel(ctx, pumpModel, "mqtt"); err != nil {
		return err
	}
	return a.createDevices(ctx, names, pumpModel, "mqtt", map[string]any{}, map[string]any{})
}

// createMotors creates Devices of a mapper. Their samples count up.
func (a deviceAPI) createMotors(ctx context.Context, names []string) error {
	if err := a.createModel(ctx, motorModel, mapperrun.Protocol); err != nil {
		return err
	}
	visited := func(count bool) map[string]any {
		return map[string]any{
			"reportToCloud": count, "collectCycle": int64(motorCycle),
			"visitors": map[string]any{"protocolName": mapperrun.Protocol, "configData": map[string]any{"count": count}},
		}
	}
	return a.createDevices(ctx, names, motorModel, mapperrun.Protocol, visited(true), visited(false))
}

func (a deviceAPI) createDevices(ctx context.Context, names []string, model, protocol string, sample, setpoint map[string]any) error {
	sample["name"], setpoint["name"], setpoint["desired"] = sensor.Sample, sensor.Setpoint, map[string]any{"value": "0"}
	return workload.ForEach(ctx, names, func(ctx context.Context, _ int, name string) error {
		return a.create(ctx, devices.DevicesResource, devices.DeviceKind, name, map[string]any{
			"deviceModelRef": map[string]any{"name": model}, "nodeName": a.edge, "protocol": map[string]any{"protocolName": protocol},
			"properties": []any{sample, setpoint},
		})
	})
}

// setDesired patches the desired value of a Device's setpoint, as kubectl patch does.
func (a deviceAPI) setDesired(ctx context.Context, name, value string) error {
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/properties/1/desired/value", "value": value}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	if _, err := a.resource(devices.DevicesResource).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch device %s: %w", name, err)
	}
	return nil
}

// deleteDevices deletes all Devices and DeviceModels, also after ctx has ended.
func (a deviceAPI) deleteDevices(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource} {
		if err := a.resource(resource).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", resource, err))
		}
	}
	return errors.Join(errs...)
}

// cleanTimeout bounds the deletion of some thousand objects.
const cleanTimeout = time.Minute
