package devicecopy_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/controllers/devicecopy"
)

// object parses an object.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	for _, path := range [][]string{{"metadata", "generation"}, {"status", "frond", "generation"}, {"status", "frond", "specGeneration"}} {
		if value, found, _ := unstructured.NestedFloat64(o.Object, path...); found { // as the apiserver's decoder gives them
			if err := unstructured.SetNestedField(o.Object, int64(value), path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	return o
}

// The patch has what differs and nothing else, and says which generation of the Device it makes.
func TestPatchFor(t *testing.T) {
	status := func(owner, status string) string {
		return `{"metadata":{"name":"a","ownerReferences":[{"uid":"` + owner + `"}]},"status":` + status + `}`
	}
	device := func(status string) string {
		return `{"metadata":{"name":"a","uid":"u","resourceVersion":"9","generation":4},"status":` + status + `}`
	}
	for name, tt := range map[string]struct{ device, status, want string }{
		"first copy": {
			device(`{"reportToCloud":true}`),
			status("u", `{"twins":[{"propertyName":"t"}],"state":"ok","lastOnlineTime":"now","extensions":{"frond":{"conditions":[]}}}`),
			`{"twins":[{"propertyName":"t"}],"state":"ok","lastOnlineTime":"now","frond":{"generation":5,"specGeneration":4}}`,
		},
		"equal":      {device(`{"twins":[{"propertyName":"t"}],"state":"ok"}`), status("u", `{"twins":[{"propertyName":"t"}],"state":"ok"}`), ""},
		"both empty": {device(`{}`), status("u", `{}`), ""},
		"after a copy": {
			device(`{"state":"ok","frond":{"generation":4,"specGeneration":2}}`), status("u", `{"state":"bad"}`), `{"state":"bad","frond":{"generation":5,"specGeneration":2}}`,
		},
		"after a copy and a change of the Device": {
			device(`{"state":"ok","frond":{"generation":3,"specGeneration":2}}`), status("u", `{"state":"bad"}`), `{"state":"bad","frond":{"generation":5,"specGeneration":4}}`,
		},
		"values that are gone": {
			device(`{"state":"ok","twins":[{"propertyName":"t"}],"lastOnlineTime":"then"}`), status("u", `{}`), `{"twins":null,"state":null,"frond":{"generation":5,"specGeneration":4}}`,
		},
		"the status of an earlier Device": {device(`{}`), status("before", `{"state":"ok"}`), ""},
		"a status without an owner":       {device(`{}`), `{"metadata":{"name":"a"},"status":{"state":"ok"}}`, ""},
		"a status that is no object":      {device(`{}`), status("u", `"ok"`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			patch, err := devicecopy.PatchFor(object(t, tt.device), object(t, tt.status))
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" || patch == nil {
				if (tt.want == "") != (patch == nil) {
					t.Fatalf("patch %s, want %s", patch, tt.want)
				}
				return
			}
			var got, want map[string]any
			if err := json.Unmarshal(patch, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(`{"metadata":{"uid":"u","resourceVersion":"9"},"status":`+tt.want+`}`), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}
