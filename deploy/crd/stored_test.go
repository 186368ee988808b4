package crd_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// setDeviceDefinition replaces the definition of Device by Frond's, changed: spec is its schema of spec, properties that of spec.properties.
func (a *deviceAPI) setDeviceDefinition(change func(spec, properties map[string]any)) {
	a.Helper()
	const name = devices.DevicesResource + "." + devices.Group
	definitions, err := crd.Definitions()
	if err != nil {
		a.Fatal(err)
	}
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			a.Fatal(err)
		}
		if o.GetName() != name {
			continue
		}
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		current := versions[1].(map[string]any)
		spec, _, err := unstructured.NestedFieldNoCopy(current, "schema", "openAPIV3Schema", "properties", "spec")
		if err != nil {
			a.Fatal(err)
		}
		properties, _, err := unstructured.NestedFieldNoCopy(spec.(map[string]any), "properties", "properties")
		if err != nil {
			a.Fatal(err)
		}
		change(spec.(map[string]any), properties.(map[string]any))
		if err := unstructured.SetNestedSlice(o.Object, versions, "spec", "versions"); err != nil {
			a.Fatal(err)
		}
		kubetest.Eventually(a, time.Minute, func() error {
			stored, err := a.client.Resource(definitionResource()).Get(a.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			o.SetResourceVersion(stored.GetResourceVersion())
			_, err = a.client.Resource(definitionResource()).Update(a.Context(), o, metav1.UpdateOptions{})
			return err
		})
	}
}

// TestDevices_StoredObjectsStayWritable: what a cluster has stored under KubeEdge's definition, which checks less, can be updated under
// Frond's, also where it would be refused if it were new.
func TestDevices_StoredObjectsStayWritable(t *testing.T) {
	a := newDeviceAPI(t)
	bad := decodeManifests(t, []byte(`
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: node}, spec: {nodeName: Edge_Node}}
---
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: twice}, spec: {properties: [{name: a}, {name: a}]}}
---
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: nameless}, spec: {properties: [{name: a}, {desired: {value: "1"}}]}}
---
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: cycle}, spec: {properties: [{name: a, reportCycle: -1}]}}
---
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: node-twice}, spec: {nodeName: Edge_Node, properties: [{name: a}, {name: a}]}}
`))
	a.setDeviceDefinition(func(spec, properties map[string]any) {
		unstructured.RemoveNestedField(spec, "properties", "nodeName", "x-kubernetes-validations")
		delete(properties, "x-kubernetes-list-type")
		delete(properties, "x-kubernetes-list-map-keys")
		unstructured.RemoveNestedField(properties, "items", "x-kubernetes-validations")
		unstructured.RemoveNestedField(properties, "items", "properties", "name", "default")
		unstructured.RemoveNestedField(properties, "items", "properties", "reportCycle", "minimum")
	})
	for _, o := range bad {
		kubetest.Eventually(t, time.Minute, func() error {
			_, err := a.create(o)
			return err
		})
	}
	a.setDeviceDefinition(func(_, _ map[string]any) {})
	for _, o := range bad {
		kubetest.Eventually(t, time.Minute, func() error {
			fresh := o.DeepCopy()
			fresh.SetName("")
			fresh.SetGenerateName("fresh-")
			if _, err := a.create(fresh); err == nil {
				return errors.New("the definition is not in force yet")
			}
			return nil
		})
		for _, patch := range []string{`{"metadata":{"labels":{"seen":"yes"}}}`, `{"status":{"state":"ok"}}`, `{"spec":{"protocol":{"protocolName":"modbus"}}}`} {
			if _, err := a.resourceOf(o).Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Errorf("%s: %s: %v", o.GetName(), patch, err)
			}
		}
	}
}
