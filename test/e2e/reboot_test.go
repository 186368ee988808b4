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

// fleetManifest is ten pods on edge-2 that need everything a boot must restore: ConfigMap, Secret, projected token, downward
// API, a claim on a local volume, probes. One of the ten is a static pod, which bootManifest makes; it has a port of the gateway.
const fleetManifest = `
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
kind: Service
metadata: {name: boot}
spec: {clusterIP: 10.96.0.77, internalTrafficPolicy: Local, selector: {set: boot}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: boot-disk, labels: {app: boot}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    command: [sh, -c, %[2]q]
    env: [{name: NODE_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]
    volumeMounts: [{name: disk, mountPath: /disk}]
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
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]
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

// bootClient records its start, and the answers of two Services, of which the second is created later, and of a port of the
// gateway itself.
const bootClient = `echo boot >> /disk/boots
while true; do
  timeout 1 wget -qO- http://10.96.0.77/hostname >> /disk/answers; echo >> /disk/answers
  timeout 1 wget -qO- http://10.96.0.78/hostname >> /disk/late; echo >> /disk/late
  timeout 1 wget -qO- http://$NODE_ADDRESS:8077/hostname >> /disk/port; echo >> /disk/port
  sleep 0.2
done`

const bootManifest = `
apiVersion: v1
kind: Pod
metadata: {name: lamp, namespace: default, labels: {app: boot}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/frond/http:dev, imagePullPolicy: Never, ports: [{containerPort: 8080, hostPort: 8077}]}
`

// startFleet starts the ten pods of edge-2 and waits until Kubernetes shows them running.
func startFleet(t *testing.T) []corev1.Pod {
	t.Helper()
	disk := filepath.Join(shared.Dir(), "edge-2", "disk")
	t.Cleanup(func() { _ = os.RemoveAll(disk) })
	static := filepath.Join(shared.Dir(), "edge-2", "manifests", "lamp.yaml")
	if err := os.WriteFile(static, []byte(bootManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(static) })
	applyManifest(t, fmt.Sprintf(fleetManifest, disk, bootClient))
	applyManifest(t, manyConfigMaps("flow", "edge-2", 20))
	awaitRunning(t, "app=flow", 1)
	return awaitRunning(t, "app=boot", 10)
}

// checkVolumes fails unless the pods' volumes have their original content.
func checkVolumes(t *testing.T, list []corev1.Pod) {
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

// containerIDs maps the containers of a gateway's pods to their ids, as the gateway's own API shows them.
func containerIDs(ctx context.Context, edge string, list []corev1.Pod) (map[string]string, error) {
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

// rebootAndCheck power-cycles edge-2, and checks that all pods have their volumes and data again. It returns
// their containers.
func rebootAndCheck(t *testing.T, before []corev1.Pod, o devcluster.Reboot) map[string]string {
	t.Helper()
	boots := bootsOf(t)
	o.Timeout = waitTimeout
	result, err := shared.Reboot(t.Context(), "edge-2", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline %v: local API after %.1f s, %d pods Running after %.1f s", result.Offline, result.Agent, result.Pods, result.Running)
	if result.Pods < len(before) {
		t.Errorf("%d pods ran before, want %d at least", result.Pods, len(before))
	}
	checkVolumes(t, before)
	awaitServiceAnswers(t)
	if n := bootsOf(t); n != boots+1 {
		t.Errorf("the pod with the claim has written %d starts, want %d", n, boots+1)
	}
	now, err := containerIDs(t.Context(), "edge-2", before)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// healAndCheck heals the link of edge-2 and checks that this stops, starts or recreates nothing, except the pods that were deleted
// meanwhile.
func healAndCheck(t *testing.T, before []corev1.Pod, offline map[string]string, deleted ...string) {
	t.Helper()
	boots := bootsOf(t)
	if err := shared.Heal(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is Ready", nodeReady("edge-2"))
	for _, name := range deleted {
		awaitGone(t, "edge-2", wire.Key{Resource: "pods", Namespace: "default", Name: name})
	}
	uids := map[string]string{}
	for i := range before {
		if before[i].Labels["set"] != "" { // the kubelet recreates a mirror pod
			uids[before[i].Name] = string(before[i].UID)
		}
	}
	eventually(t, "Kubernetes shows the containers that the gateway started offline", func(ctx context.Context) string {
		list, err := listPods(ctx, "app=boot")
		if err != nil {
			return err.Error()
		}
		if len(list) != len(before)-len(deleted) {
			return fmt.Sprintf("%d pods, want %d less %d", len(list), len(before), len(deleted))
		}
		for i := range list {
			for _, c := range list[i].Status.ContainerStatuses {
				if want := offline[list[i].Name+"/"+c.Name]; c.ContainerID != want {
					return fmt.Sprintf("%s/%s is %s, want %s", list[i].Name, c.Name, c.ContainerID, want)
				}
			}
			if uid := uids[list[i].Name]; uid != "" && uid != string(list[i].UID) {
				t.Errorf("pod %s was replaced", list[i].Name)
				delete(uids, list[i].Name)
			}
		}
		return ""
	})
	if n := bootsOf(t); n != boots {
		t.Errorf("the heal restarted the pod with the claim: %d starts, want %d", n, boots)
	}
}

// TestReboot_OfflineBringsEverythingBack cuts the power of a gateway with ten pods and no link, and boots it
// while the cloud is unreachable; then under increasingly adverse conditions. When the link heals, nothing restarts, and
// the pods that were deleted meanwhile end.
func TestReboot_OfflineBringsEverythingBack(t *testing.T) {
	needContainers(t)
	before := startFleet(t)
	checkVolumes(t, before)
	awaitServiceAnswers(t)
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-2"); err != nil {
			t.Error(err)
		}
	})
	whole := t
	var offline map[string]string
	away := newCutGateways(t)
	// Each subtest continues with the state of the previous one.
	_ = t.Run("cut off", func(t *testing.T) {
		offline = rebootAndCheck(t, before, devcluster.Reboot{Offline: true})
	}) &&
		t.Run("with tokens older than an hour", func(t *testing.T) {
			offline = rebootAndCheck(t, before, devcluster.Reboot{Offline: true, WhileOff: ageTokens(t)})
			awaitTokens(t, before, expiredTokens)
		}) &&
		t.Run("and nobody is evicted", func(t *testing.T) {
			away.checkEviction(t)
		}) &&
		t.Run("healed", func(t *testing.T) {
			applyManifest(whole, lateServiceManifest)
			healAndCheck(t, before, offline)
			awaitLateService(t)
			awaitTokens(t, before, freshTokens)
		}) &&
		t.Run("in the midst of writes", func(t *testing.T) {
			offline = rebootDuringWrites(t, before)
		}) &&
		t.Run("with a full disk", func(t *testing.T) {
			full := fillDisk(whole)
			offline = rebootAndCheck(t, before, devcluster.Reboot{Offline: true, WhileOff: full})
			awaitLowDisk(t)
		}) &&
		t.Run("healed with a full disk", func(t *testing.T) {
			runKubectl(t, "delete", "pod", "boot-disk", "--wait=false")
			healAndCheck(t, before, offline, "boot-disk")
			if err := setConfigMap(t.Context(), sharedKube, "flow-0", "full"); err != nil {
				t.Fatal(err)
			}
			awaitValue(t, "flow-0", "full", "edge-2") // the store has a disk reserve
		})
}

// TestReboot_WithLink is the same with the link up.
func TestReboot_WithLink(t *testing.T) {
	applyManifest(t, manyConfigMaps("again", "edge-1", 3))
	before := awaitRunning(t, "app=again", 1)
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Timeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("online: %d pods Running after %.1f s", result.Pods, result.Running)
	eventually(t, "the node is Ready", nodeReady("edge-1"))
	if after := awaitRunning(t, "app=again", 1); after[0].UID != before[0].UID {
		t.Error("the pod was replaced")
	}
	if err := setConfigMap(t.Context(), sharedKube, "again-0", "after"); err != nil {
		t.Fatal(err)
	}
	awaitValue(t, "again-0", "after", "edge-1")
}
