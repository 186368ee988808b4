package devices_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/devices"
)

func TestSpecGeneration(t *testing.T) {
	for name, tt := range map[string]struct {
		copied any
		want   int64
	}{
		"no copy":               {nil, 5},
		"a copy":                {map[string]any{"generation": int64(5), "specGeneration": int64(2)}, 2},
		"changed after a copy":  {map[string]any{"generation": int64(4), "specGeneration": int64(2)}, 5},
		"a generation to come":  {map[string]any{"generation": int64(5), "specGeneration": int64(9)}, 5},
		"none":                  {map[string]any{"generation": int64(5)}, 5},
		"not a number":          {map[string]any{"generation": "5", "specGeneration": "2"}, 5},
		"written by another":    {"text", 5},
		"a negative generation": {map[string]any{"generation": int64(5), "specGeneration": int64(-1)}, 5},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(5)}, "status": map[string]any{"frond": tt.copied}}}
		if got := devices.SpecGeneration(o); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
