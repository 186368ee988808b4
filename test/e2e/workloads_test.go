package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// edgePodSpec is the common part of the tests' pod specs for gateways.
const edgePodSpec = `
      nodeSelector: {node-role.kubernetes.io/edge: ""}
      terminationGracePeriodSeconds: 2
`

// webDeployment is a Deployment that mounts a ConfigMap and a Secret and spreads over the gateways.
func webDeployment(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
data: {index.html: "one"}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
stringData: {token: "s3cret"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:%[3]s
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %[1]s}}}
      containers:
      - name: web
        image: localhost/frond/http:dev
        imagePullPolicy: Never
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        volumeMounts:
        - {name: page, mountPath: /www}
        - {name: secret, mountPath: /secret}
        env:
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: %[1]s, key: token}}}
      volumes:
      - {name: page, configMap: {name: %[1]s}}
      - {name: secret, secret: {secretName: %[1]s}}
`, name, replicas, edgePodSpec)
}

func TestDeployment_RunsOnBothGateways(t *testing.T) {
	applyManifest(t, webDeployment("plain", 2))
	list := awaitRunning(t, "app=plain", 2)
	if list[0].Spec.NodeName == list[1].Spec.NodeName {
		t.Errorf("both pods run on %s", list[0].Spec.NodeName)
	}
	wide := runKubectl(t, "get", "pods", "-l", "app=plain", "-o", "wide")
	if !strings.Contains(wide, "edge-1") || !strings.Contains(wide, "edge-2") || !strings.Contains(wide, "Running") {
		t.Errorf("kubectl get pods -o wide:\n%s", wide)
	}
	described := runKubectl(t, "describe", "pod", list[0].Name)
	for _, want := range []string{"Started", "Scheduled", "Ready", "localhost/frond/http:dev"} {
		if !strings.Contains(described, want) {
			t.Errorf("kubectl describe pod lacks %q:\n%s", want, described)
		}
	}
	eventually(t, "events of the kubelet", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "get", "events", "--field-selector", "involvedObject.name="+list[0].Name)
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(out, "Started") {
			return out
		}
		return ""
	})
	runKubectl(t, "delete", "deployment,configmap,secret", "plain", "--timeout=100s")
	for _, edge := range []string{"edge-1", "edge-2"} {
		awaitGone(t, edge, wire.Key{Resource: "secrets", Namespace: "default", Name: "plain"})
		awaitGone(t, edge, wire.Key{Resource: "configmaps", Namespace: "default", Name: "plain"})
		for _, p := range list {
			awaitGone(t, edge, wire.Key{Resource: "pods", Namespace: "default", Name: p.Name})
		}
	}
	for _, edge := range []string{"edge-1", "edge-2"} {
		for _, resource := range []string{"secrets", "configmaps"} { // a tombstone stays for a while after the ack: controllers/desired
			expectTombstone(t, subject.Of(subject.Desired, edge, wire.Key{Resource: resource, Namespace: "default", Name: "plain"}))
		}
	}
}

func TestControllers_EveryKind(t *testing.T) {
	t.Parallel()
	applyManifest(t, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: every}
spec:
  selector: {matchLabels: {app: every}}
  template:
    metadata: {labels: {app: every}}
    spec:`+edgePodSpec+`
      initContainers:
      - {name: first, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, "echo prepared > /work/file"], volumeMounts: [{name: work, mountPath: /work}]}
      containers:
      - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, "cat /work/file && sleep 3600"], volumeMounts: [{name: work, mountPath: /work}]}
      volumes: [{name: work, emptyDir: {}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ordered}
spec:
  serviceName: ordered
  replicas: 2
  selector: {matchLabels: {app: ordered}}
  template:
    metadata: {labels: {app: ordered}}
    spec:`+edgePodSpec+`
      containers:
      - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "3600"]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  completions: 2
  parallelism: 2
  template:
    metadata: {labels: {app: once}}
    spec:`+edgePodSpec+`
      restartPolicy: Never
      containers:
      - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, "echo done"]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: often}}
        spec:
          nodeSelector: {node-role.kubernetes.io/edge: ""}
          restartPolicy: Never
          containers:
          - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, "echo tick"]}
`)
	awaitRunning(t, "app=every", 2)
	ordered := awaitRunning(t, "app=ordered", 2)
	names := []string{ordered[0].Name, ordered[1].Name}
	if !strings.Contains(fmt.Sprint(names), "ordered-0") || !strings.Contains(fmt.Sprint(names), "ordered-1") {
		t.Errorf("pods of the StatefulSet are %v", names)
	}
	needContainers(t)
	eventually(t, "the Job completes", func(ctx context.Context) string {
		job, err := sharedKube.BatchV1().Jobs("default").Get(ctx, "once", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if job.Status.Succeeded != 2 {
			return fmt.Sprintf("%+v", job.Status)
		}
		return ""
	})
	eventually(t, "the CronJob has run", func(ctx context.Context) string {
		list, err := listPods(ctx, "app=often")
		if err != nil {
			return err.Error()
		}
		for i := range list {
			if list[i].Status.Phase == "Succeeded" {
				return ""
			}
		}
		return describePods(list)
	})
	before := ordered[0].UID
	runKubectl(t, "delete", "pod", ordered[0].Name)
	after := awaitRunning(t, "app=ordered", 2)
	for i := range after {
		if after[i].UID == before {
			t.Errorf("%s was not created again", after[i].Name)
		}
	}
}

func TestConfigMap_ReachesVolume(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, webDeployment("volume", 2))
	list := awaitRunning(t, "app=volume", 2)
	seen := func(plugin, volume, file, want string) {
		t.Helper()
		eventually(t, file+" is "+want, func(context.Context) string {
			for i := range list {
				if got, err := volumeFile(&list[i], plugin, volume, file); err != nil || got != want {
					return fmt.Sprintf("%s: %q, %v", list[i].Name, got, err)
				}
			}
			return ""
		})
	}
	before := containerRuns(list)
	seen("kubernetes.io~configmap", "page", "index.html", "one")
	seen("kubernetes.io~secret", "secret", "token", "s3cret")
	runKubectl(t, "patch", "configmap", "volume", "-p", `{"data":{"index.html":"two"}}`)
	runKubectl(t, "patch", "secret", "volume", "-p", `{"stringData":{"token":"other"}}`)
	seen("kubernetes.io~configmap", "page", "index.html", "two")
	seen("kubernetes.io~secret", "secret", "token", "other")
	runKubectl(t, "delete", "configmap", "volume")
	runKubectl(t, "create", "configmap", "volume", "--from-literal=index.html=three")
	seen("kubernetes.io~configmap", "page", "index.html", "three")
	if after := containerRuns(awaitRunning(t, "app=volume", 2)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers changed:\n%v\n%v", before, after)
	}
}

func TestSecret_LeavesWithLastPod(t *testing.T) {
	applyManifest(t, webDeployment("mine", 1))
	applyManifest(t, `
apiVersion: v1
kind: Secret
metadata: {name: nobodys}
stringData: {a: b}
`)
	pod := awaitRunning(t, "app=mine", 1)[0]
	here := pod.Spec.NodeName
	there := map[string]string{"edge-1": "edge-2", "edge-2": "edge-1"}[here]
	mine := wire.Key{Resource: "secrets", Namespace: "default", Name: "mine"}
	nobodys := wire.Key{Resource: "secrets", Namespace: "default", Name: "nobodys"}
	for _, check := range []struct {
		edge string
		key  wire.Key
		want bool
	}{{here, mine, true}, {there, mine, false}, {here, nobodys, false}, {there, nobodys, false}} {
		if got, err := storeHolds(t.Context(), check.edge, check.key); err != nil || got != check.want {
			t.Errorf("%s holds %s: %v, %v, want %v", check.edge, check.key.Human(), got, err, check.want)
		}
	}
	runKubectl(t, "scale", "deployment", "mine", "--replicas=0")
	awaitGone(t, here, mine)
}
