package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
)

// robotManifest is a pod on edge-1 whose program, test/e2e/client, uses Kubernetes as any operator does.
const robotManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: robots}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: robots}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: robot, namespace: robots}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch]}
- {apiGroups: [example.com], resources: [widgets], verbs: [get, list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: robot, namespace: robots}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: robot}
subjects: [{kind: ServiceAccount, name: robot, namespace: robots}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: robot-events}
rules:
- {apiGroups: [""], resources: [events], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: robot-events}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: robot-events}
subjects: [{kind: ServiceAccount, name: robot, namespace: robots}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: frond-cloudcore-widgets, labels: {frond.io/aggregate-to-cloudcore: "true"}}
rules:
- {apiGroups: [example.com], resources: [widgets], verbs: [list, watch]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: robot, namespace: robots}
data: {key: first}
---
apiVersion: v1
kind: Pod
metadata: {name: robot, namespace: robots, labels: {app: robot}}
spec:
  serviceAccountName: robot
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    command: [/program/client, -out, /out]
    volumeMounts: [{name: program, mountPath: /program, readOnly: true}, {name: out, mountPath: /out}]
  volumes:
  - {name: program, hostPath: {path: %[1]s, type: Directory}}
  - {name: out, hostPath: {path: %[2]s, type: DirectoryOrCreate}}
`

const widgetManifest = `
apiVersion: example.com/v1
kind: Widget
metadata: {name: valve, namespace: robots}
spec: {size: 7}
`

// robotState is the program's status file; its fields are those of the program's State.
type robotState struct {
	Started    time.Time         `json:"started"`
	Synced     bool              `json:"synced"`
	ConfigMaps map[string]string `json:"configMaps"`
	Widgets    map[string]int64  `json:"widgets"`
	Writes     int               `json:"writes"`
	WriteError string            `json:"writeError"`
	Tries      map[string]int    `json:"tries"`
	Leads      bool              `json:"leads"`
	Holders    map[string]string `json:"holders"`
	Heard      map[string]int    `json:"heard"`
	Refused    int64             `json:"refused"`
}

// robotEvents is an event and another client's lease.
const robotEvents = `
apiVersion: v1
kind: Event
metadata: {generateName: proof-, namespace: robots}
involvedObject: {kind: Pod, namespace: robots, name: robot}
reason: Proof
message: of an event that is followed
type: Normal
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {generateName: other-, namespace: robots}
spec: {holderIdentity: %s}
`

// checkRobotFollows creates an event and a lease, and checks that the program sees both.
func checkRobotFollows(t *testing.T, file, holder string) {
	t.Helper()
	before := awaitRobot(t, file, "the pod follows events", func(s robotState) bool { return len(s.Heard) > 0 }).Heard["Proof"]
	if _, err := shared.Kubectl(t.Context(), fmt.Sprintf(robotEvents, holder), "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	awaitRobot(t, file, "the pod leads, and sees leases and events", func(s robotState) bool {
		return s.Leads && s.Holders["leader"] == "robot" && slices.Contains(slices.Collect(maps.Values(s.Holders)), holder) && s.Heard["Proof"] > before && s.Refused == 0
	})
}

// startRobot builds the program and starts its pod. It returns the path of its status file.
func startRobot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(shared.Dir(), "edge-1", "robot")
	program, out := filepath.Join(dir, "program"), filepath.Join(dir, "out")
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-o", filepath.Join(program, "client"), "./client")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, text)
	}
	applyManifest(t, fmt.Sprintf(robotManifest, program, out))
	eventually(t, "the kind of widgets is served", func(ctx context.Context) string {
		if _, err := shared.Kubectl(ctx, widgetManifest, "apply", "-f", "-"); err != nil {
			return err.Error()
		}
		return ""
	})
	return filepath.Join(out, "state.json")
}

// awaitRobot waits until the program's status satisfies a condition.
func awaitRobot(t *testing.T, file, what string, holds func(robotState) bool) robotState {
	t.Helper()
	var s robotState
	eventually(t, what, func(context.Context) string {
		data, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		s = robotState{}
		if err := json.Unmarshal(data, &s); err != nil {
			return err.Error()
		}
		if !holds(s) {
			return string(data)
		}
		return ""
	})
	return s
}

// TestLocalAPI_ServesPods: a program in a pod on a gateway, which knows nothing of Frond, lists, watches and writes with
// its in-cluster configuration. Without a link its reads continue, also after a reboot, and its writes fail with a clear error.
// It never receives objects that it may not read.
func TestLocalAPI_ServesPods(t *testing.T) {
	needContainers(t)
	file := startRobot(t)
	forbidden := map[string]int{
		"others' secrets": 403, "all secrets": 403, "the store": 403, "others' tokens": 403, "forged": 401, "nobody": 401,
	}
	first := awaitRobot(t, file, "the pod sees its objects and writes", func(s robotState) bool {
		return s.Synced && s.ConfigMaps["robot"] == "first" && s.Widgets["valve"] == 7 && s.Writes > 0 && s.WriteError == "" && maps.Equal(s.Tries, forbidden)
	})
	if count := runKubectl(t, "-n", "robots", "get", "cm", "echo", "-o", "jsonpath={.data.count}"); count == "" {
		t.Error("Kubernetes does not have what the pod wrote")
	}
	runKubectl(t, "-n", "robots", "patch", "cm", "robot", "--type=merge", "-p", `{"data":{"key":"second"}}`)
	runKubectl(t, "-n", "robots", "patch", "widget", "valve", "--type=merge", "-p", `{"spec":{"size":8}}`)
	awaitRobot(t, file, "the pod sees changes", func(s robotState) bool { return s.ConfigMaps["robot"] == "second" && s.Widgets["valve"] == 8 })

	checkRobotFollows(t, file, "before")
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	awaitRobot(t, file, "a write fails in clear words, and nobody leads", func(s robotState) bool {
		return strings.Contains(s.WriteError, "cannot ask the cloud") && !s.Leads
	})
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline reboot: %d pods Running after %.1f s", result.Pods, result.Running)
	awaitRobot(t, file, "the pod sees its objects after an offline reboot", func(s robotState) bool {
		return s.Started.After(first.Started) && s.Synced && s.ConfigMaps["robot"] == "second" && s.Widgets["valve"] == 8 &&
			strings.Contains(s.WriteError, "cannot ask the cloud") && maps.Equal(s.Tries, forbidden)
	})
	runKubectl(t, "-n", "robots", "patch", "cm", "robot", "--type=merge", "-p", `{"data":{"key":"third"}}`)
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	awaitRobot(t, file, "the pod is back with the link", func(s robotState) bool { return s.ConfigMaps["robot"] == "third" && s.WriteError == "" && s.Writes > 0 })
	checkRobotFollows(t, file, "after")
}
