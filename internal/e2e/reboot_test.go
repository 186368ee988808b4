package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

// fleet is ten pods on edge-2 that need all that a boot has to bring back: ConfigMap, Secret, projected token, downward
// API, a claim on a local volume, probes. One of the ten is a static pod, which bootManifest makes.
const fleet = `
apiVersion: v1
kind: ConfigMap
metadata: {name: boot}
data: {color: green}
---
apiVersion: v1
kind: Secret
metadata: {name: boot}
stringData: {word: swordfish}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: boot}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: boot
  persistentVolumeReclaimPolicy: Delete
  hostPath: {path: %[1]s, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: boot}
spec: {accessModes: [ReadWriteOnce], storageClassName: boot, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: boot-disk, labels: {app: boot}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, "echo boot >> /disk/boots; sleep 36000"], volumeMounts: [{name: disk, mountPath: /disk}]}
  volumes: [{name: disk, persistentVolumeClaim: {claimName: boot}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: boot}
spec:
  serviceName: boot
  replicas: 8
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: boot, set: boot}}
  template:
    metadata: {labels: {app: boot, set: boot}}
    spec:
      nodeSelector: {kubernetes.io/hostname: edge-2}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/frond/http:dev
        imagePullPolicy: Never
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        env:
        - {name: WORD, valueFrom: {secretKeyRef: {name: boot, key: word}}}
        volumeMounts: [{name: page, mountPath: /www}, {name: all, mountPath: /all}]
      volumes:
      - {name: page, configMap: {name: boot}}
      - name: all
        projected:
          sources:
          - secret: {name: boot}
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
`

const bootManifest = `
apiVersion: v1
kind: Pod
metadata: {name: lamp, namespace: default, labels: {app: boot}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"]}
`

// startFleet starts the ten pods of edge-2 and waits until Kubernetes sees them run.
func startFleet(t *testing.T) []corev1.Pod {
	t.Helper()
	disk := filepath.Join(shared.Dir(), "edge-2", "disk")
	t.Cleanup(func() { _ = os.RemoveAll(disk) })
	static := filepath.Join(shared.Dir(), "edge-2", "manifests", "lamp.yaml")
	if err := os.WriteFile(static, []byte(bootManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(static) })
	apply(t, fmt.Sprintf(fleet, disk))
	return running(t, "app=boot", 10)
}

// mounted fails unless the pods' volumes hold what they held when the pods were made.
func mounted(t *testing.T, list []corev1.Pod) {
	t.Helper()
	for i := range list {
		p := &list[i]
		if p.Labels["set"] == "" {
			continue
		}
		token, err := volumeFile(p, "kubernetes.io~projected", "all", "token")
		if err != nil || strings.Count(token, ".") != 2 {
			t.Errorf("%s: the token is %q: %v", p.Name, token, err)
		}
		for _, f := range []struct{ plugin, volume, file, want string }{
			{"kubernetes.io~configmap", "page", "color", "green"},
			{"kubernetes.io~projected", "all", "word", "swordfish"},
			{"kubernetes.io~projected", "all", "name", p.Name},
		} {
			if got, err := volumeFile(p, f.plugin, f.volume, f.file); err != nil || got != f.want {
				t.Errorf("%s: %s is %q, want %q: %v", p.Name, f.file, got, f.want, err)
			}
		}
	}
}

// bootsOf counts the starts that the pod with the claim has written to its disk.
func bootsOf(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(shared.Dir(), "edge-2", "disk", "boots"))
	if err != nil {
		t.Error(err)
	}
	return strings.Count(string(data), "boot")
}

// ids maps the containers of a gateway's pods to their ids, as the gateway's own API shows them.
func ids(ctx context.Context, edge string, list []corev1.Pod) (map[string]string, error) {
	found := map[string]string{}
	for i := range list {
		raw, err := shared.StoreGet(ctx, edge, wire.Key{Resource: "pods", Namespace: "default", Name: list[i].Name})
		if err != nil {
			return nil, err
		}
		var p corev1.Pod
		if err := json.Unmarshal(raw, &p); err != nil {
			return nil, err
		}
		for _, c := range p.Status.ContainerStatuses {
			found[p.Name+"/"+c.Name] = c.ContainerID
		}
	}
	return found, nil
}

// TestAnOfflineRebootBringsEverythingBack takes the power from a gateway with ten pods and no link, and gives it back
// while the cloud cannot be reached. Then the link heals, and nothing is restarted by that.
func TestAnOfflineRebootBringsEverythingBack(t *testing.T) {
	needContainers(t)
	before := startFleet(t)
	mounted(t, before)
	boots := bootsOf(t)
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-2"); err != nil {
			t.Error(err)
		}
	})
	result, err := shared.Reboot(t.Context(), "edge-2", devcluster.Reboot{Offline: true, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline: local API after %.1f s, %d pods Running after %.1f s", result.Agent, result.Pods, result.Running)
	if result.Pods < 10 {
		t.Errorf("%d pods ran before, want 10 at least", result.Pods)
	}
	mounted(t, before)
	if n := bootsOf(t); n != boots+1 {
		t.Errorf("the pod with the claim has written %d starts, want %d", n, boots+1)
	}
	offline, err := ids(t.Context(), "edge-2", before)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Heal(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is Ready", nodeReady("edge-2"))
	for i, p := range running(t, "app=boot", 10) {
		if p.Labels["set"] != "" && p.UID != before[i].UID {
			t.Errorf("pod %s was replaced", p.Name)
		}
	}
	eventually(t, "Kubernetes shows the containers that the gateway started offline", func(ctx context.Context) string {
		list, err := pods(ctx, "app=boot")
		if err != nil {
			return err.Error()
		}
		for i := range list {
			for _, c := range list[i].Status.ContainerStatuses {
				if want := offline[list[i].Name+"/"+c.Name]; c.ContainerID != want {
					return fmt.Sprintf("%s/%s is %s, want %s", list[i].Name, c.Name, c.ContainerID, want)
				}
			}
		}
		return ""
	})
	if n := bootsOf(t); n != boots+1 {
		t.Errorf("the heal restarted the pod with the claim: %d starts, want %d", n, boots+1)
	}
}

// TestARebootWithLink is the same with the link up.
func TestARebootWithLink(t *testing.T) {
	apply(t, many("again", "edge-1", 3))
	before := running(t, "app=again", 1)
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("online: %d pods Running after %.1f s", result.Pods, result.Running)
	eventually(t, "the node is Ready", nodeReady("edge-1"))
	if after := running(t, "app=again", 1); after[0].UID != before[0].UID {
		t.Error("the pod was replaced")
	}
	if err := set(t.Context(), clients(t), "again-0", "after"); err != nil {
		t.Fatal(err)
	}
	arrives(t, "again-0", "after", "edge-1")
}
