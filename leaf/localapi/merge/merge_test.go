package merge_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/merge"
)

const testNode = "edge-1"

func TestMergeDesired(t *testing.T) {
	for name, tt := range map[string]struct{ resource, local, desired, want string }{
		"pod: status from the node, the rest from the cloud": {
			"pods",
			`{"metadata":{"name":"a","labels":{"old":"1"}},"spec":{"nodeName":"n"},"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"c","ready":true,"restartCount":2,"image":"i","imageID":"","started":true}]}}`,
			`{"metadata":{"name":"a","labels":{"new":"1"},"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"n","activeDeadlineSeconds":5},"status":{"phase":"Pending"}}`,
			`{"metadata":{"name":"a","labels":{"new":"1"},"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"n","activeDeadlineSeconds":5},"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"c","state":{},"lastState":{},"ready":true,"restartCount":2,"image":"i","imageID":"","started":true}]}}`,
		},
		"pod: the kubelet has said nothing yet": {
			"pods",
			`{"metadata":{"name":"a"},"status":{}}`,
			`{"metadata":{"name":"a"},"status":{"phase":"Pending","qosClass":"Burstable"}}`,
			`{"metadata":{"name":"a"},"status":{"phase":"Pending","qosClass":"Burstable"}}`,
		},
		"pod: foreign conditions come down, the kubelet's stay": {
			"pods",
			`{"metadata":{},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"x.io/gate","status":"False"},{"type":"x.io/local","status":"True"}]}}`,
			`{"metadata":{},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"},{"type":"x.io/gate","status":"True"},{"type":"x.io/cloud","status":"True"}]}}`,
			`{"metadata":{},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":null},{"type":"x.io/gate","status":"True","lastProbeTime":null,"lastTransitionTime":null},{"type":"x.io/local","status":"True","lastProbeTime":null,"lastTransitionTime":null},{"type":"x.io/cloud","status":"True","lastProbeTime":null,"lastTransitionTime":null}]}}`,
		},
		"pod: an end that the cloud decided comes down": {
			"pods",
			`{"metadata":{},"status":{"phase":"Running"}}`,
			`{"metadata":{},"status":{"phase":"Failed","reason":"Evicted","message":"m"}}`,
			`{"metadata":{},"status":{"phase":"Failed","reason":"Evicted","message":"m"}}`,
		},
		"pod: an end that the node saw stays": {
			"pods",
			`{"metadata":{},"status":{"phase":"Succeeded"}}`,
			`{"metadata":{},"status":{"phase":"Running"}}`,
			`{"metadata":{},"status":{"phase":"Succeeded"}}`,
		},
		"pod: fields of a newer Kubernetes pass through": {
			"pods",
			`{"metadata":{},"status":{"phase":"Running"}}`,
			`{"metadata":{"someday":1},"spec":{"someday":{"a":[1]}},"status":{"phase":"Running"}}`,
			`{"metadata":{"someday":1},"spec":{"someday":{"a":[1]}},"status":{"phase":"Running"}}`,
		},
		"node: Unknown, written while it was cut off, does not come back": {
			"nodes",
			`{"metadata":{"name":"n"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			`{"metadata":{"name":"n"},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"Unknown"},{"type":"frond.io/Connected","status":"True"}],"volumesAttached":[{"name":"v","devicePath":"d"}]}}`,
			`{"metadata":{"name":"n"},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":null,"lastTransitionTime":null},{"type":"frond.io/Connected","status":"True","lastHeartbeatTime":null,"lastTransitionTime":null}],"volumesAttached":[{"name":"v","devicePath":"d"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}`,
		},
		"node: labels are the cloud's, except the kubelet's own": {
			"nodes",
			`{"metadata":{"labels":{"kubernetes.io/arch":"arm64","mine":"old","gone":"1"}},"status":{}}`,
			`{"metadata":{"labels":{"mine":"new"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			`{"metadata":{"labels":{"kubernetes.io/arch":"arm64","mine":"new"}},"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":null,"lastTransitionTime":null}],"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}`,
		},
		"anything else is the cloud's": {
			"configmaps",
			`{"metadata":{},"data":{"a":"local"}}`,
			`{"metadata":{},"data":{"a":"cloud"}}`,
			`{"metadata":{},"data":{"a":"cloud"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := merge.Desired(wire.Key{Resource: tt.resource, Name: "a"}, []byte(tt.local), []byte(tt.desired))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parseJSON(t, tt.want), parseJSON(t, string(got))); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			again, err := merge.Desired(wire.Key{Resource: tt.resource, Name: "a"}, got, []byte(tt.desired))
			if err != nil || string(again) != string(got) {
				t.Errorf("merging twice changes it: %v\n%s\n%s", err, got, again)
			}
		})
	}
}

func TestMergeDesired_RefusesNonObjects(t *testing.T) {
	for _, bad := range []string{"", "null", "[]", "{", `{"status":7}`} {
		if got, err := merge.Desired(wire.Key{Resource: "pods"}, []byte(`{"metadata":{}}`), []byte(bad)); err == nil {
			t.Errorf("%q merged to %s", bad, got)
		}
	}
}

func parseJSON(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	return v
}

// FuzzMergeDesired checks that merging never panics and that merging twice equals merging once.
func FuzzMergeDesired(f *testing.F) {
	f.Add("pods", `{"metadata":{},"status":{"phase":"Running"}}`, `{"metadata":{},"status":{"conditions":[{"type":"a"},{"type":"a"}]}}`)
	f.Add("nodes", `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`, `{"metadata":{}}`)
	f.Fuzz(func(t *testing.T, resource, local, desired string) {
		key := wire.Key{Resource: resource, Name: "a"}
		once, err := merge.Desired(key, []byte(local), []byte(desired))
		if err != nil {
			return
		}
		twice, err := merge.Desired(key, once, []byte(desired))
		if err != nil || string(once) != string(twice) {
			t.Errorf("%v\n%s\n%s", err, once, twice)
		}
	})
}

// TestForNode_TakesForeignObjects: objects of other nodes are taken from the cloud unchanged.
func TestForNode_TakesForeignObjects(t *testing.T) {
	const local, desired = `{"spec":{"nodeName":"NODE"},"status":{"phase":"Running","startTime":"2026-01-01T00:00:00Z"}}`,
		`{"spec":{"nodeName":"NODE"},"status":{"phase":"Failed","startTime":"2026-01-01T00:00:00Z","message":"cloud"}}`
	for where, cloud := range map[string]bool{testNode: false, "edge-2": true} {
		at := func(text string) []byte { return []byte(strings.ReplaceAll(text, "NODE", where)) }
		merged, err := merge.ForNode(testNode)(wire.Key{Resource: "pods", Namespace: "default", Name: "a"}, at(local), at(desired))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(merged) == string(at(desired)); got != cloud {
			t.Errorf("a pod of %s: %s", where, merged)
		}
		merged, err = merge.ForNode(testNode)(wire.Key{Resource: "nodes", Name: where}, at(local), at(desired))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(merged) == string(at(desired)); got != cloud {
			t.Errorf("node %s: %s", where, merged)
		}
	}
}
