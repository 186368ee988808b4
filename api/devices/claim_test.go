package devices_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
)

func TestHolder_IsWhoHasClaimedTheDevice(t *testing.T) {
	for name, tt := range map[string]struct{ node, claimed, holder, delivered string }{
		"not claimed":        {"new", "", "new", "new"},
		"claimed":            {"new", "new", "new", "new"},
		"moved":              {"new", "old", "old", ""},
		"taken off its node": {"", "old", "old", ""},
		"of no node":         {"", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			device := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": tt.node}}}
			if tt.claimed != "" {
				device.SetAnnotations(map[string]string{names.AnnotationDeviceHolder: tt.claimed})
			}
			if holder, delivered := devices.HolderOf(device), devices.DeliveredTo(device); holder != tt.holder || delivered != tt.delivered {
				t.Errorf("held by %q and delivered to %q, want %q and %q", holder, delivered, tt.holder, tt.delivered)
			}
		})
	}
}

func TestWithheldFrom_IsWhileTheDeviceMoves(t *testing.T) {
	for name, tt := range map[string]struct {
		node, claimed string
		withheldFrom  []string
	}{
		"not claimed":        {"new", "", nil},
		"claimed":            {"new", "new", nil},
		"moved":              {"new", "old", []string{"new", "old"}},
		"taken off its node": {"", "old", []string{"old"}},
		"of no node":         {"", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			device := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": tt.node}}}
			if tt.claimed != "" {
				device.SetAnnotations(map[string]string{names.AnnotationDeviceHolder: tt.claimed})
			}
			for _, node := range []string{"new", "old", "reader"} {
				if got, want := devices.WithheldFrom(device, node), slices.Contains(tt.withheldFrom, node); got != want {
					t.Errorf("withheld from %s: %t, want %t", node, got, want)
				}
			}
		})
	}
}
