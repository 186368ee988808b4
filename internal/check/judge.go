package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

const (
	// hubName is the StatefulSet of deploy/cloud, cloudcoreName the Deployment.
	hubName, cloudcoreName = "frond-hub", "cloudcore"
	// defaultClass marks the StorageClass of claims that name none.
	defaultClass = "storageclass.kubernetes.io/is-default-class"
	// settleTime is how long a pod of a DaemonSet may take to run before it is reported: an image is pulled over a slow link.
	settleTime = 10 * time.Minute
)

// right is what a user may do.
type right struct{ verb, group, resource, namespace string }

// String implements fmt.Stringer as kubectl auth can-i takes it.
func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.namespace != "" {
		text += " -n " + r.namespace
	}
	return text
}

func judgeVersion(server string) Result {
	verdict := kubeversion.Evaluate(server)
	if verdict.Tested {
		return passed("%s", verdict.Message)
	}
	return Result{Status: Warn, Message: verdict.Message, Fix: "use a version of Kubernetes that Frond is tested with"}
}

// judgeInstallation judges what frond init would do in a cluster that it has installed.
func judgeInstallation(r install.Report) Result {
	var changes []string
	for _, o := range r.Objects {
		if o.Action != "unchanged" {
			changes = append(changes, strings.TrimPrefix(o.Namespace+"/", "/")+o.Kind+"/"+o.Name)
		}
	}
	if len(changes) == 0 {
		return passed("all %d objects of frond init are as this version makes them", len(r.Objects))
	}
	return found(Fail, changes, fmt.Sprintf("%d of %d objects of frond init are missing, changed, of another version or due for renewal", len(changes), len(r.Objects)),
		"frond init --dry-run lists the changes, frond init makes them")
}

// judgeWarnings judges the warnings of frond init: its backup, the end of its CA, missing addresses.
func judgeWarnings(r install.Report) Result {
	if len(r.Warnings) == 0 {
		return passed("frond init warns of nothing; a backup exists")
	}
	return Result{Status: Warn, Message: strings.ReplaceAll(strings.Join(r.Warnings, "; "), "\n", " "), Fix: "each warning says what to do"}
}

// judgeHub judges the servers of the hub. A hub outside the cluster has no StatefulSet.
func judgeHub(hub *appsv1.StatefulSet, servers int) Result {
	if hub == nil {
		return skipped("no StatefulSet %s/%s: the hub runs elsewhere, or deploy/cloud was not applied", names.Namespace, hubName)
	}
	if hub.Spec.Replicas != nil {
		servers = int(*hub.Spec.Replicas)
	}
	ready := int(hub.Status.ReadyReplicas)
	switch {
	case ready < servers/2+1:
		return Result{Status: Fail, Message: fmt.Sprintf("%d of %d servers of the hub are ready: no majority, so nothing is delivered", ready, servers), Fix: podFix(hubName)}
	case ready < servers:
		return Result{Status: Warn, Message: fmt.Sprintf("%d of %d servers of the hub are ready: another one that stops may stop all", ready, servers), Fix: podFix(hubName)}
	}
	return passed("%d of %d servers of the hub are ready", ready, servers)
}

func judgeCloudcore(cloudcore *appsv1.Deployment) Result {
	if cloudcore == nil {
		return skipped("no Deployment %s/%s: cloudcore runs elsewhere, or deploy/cloud was not applied", names.Namespace, cloudcoreName)
	}
	want, ready := 1, int(cloudcore.Status.ReadyReplicas)
	if cloudcore.Spec.Replicas != nil {
		want = int(*cloudcore.Spec.Replicas)
	}
	switch {
	case ready == 0:
		return Result{Status: Fail, Message: fmt.Sprintf("none of %d replicas of cloudcore is ready", want), Fix: podFix(cloudcoreName)}
	case ready < want:
		return Result{Status: Warn, Message: fmt.Sprintf("%d of %d replicas of cloudcore are ready", ready, want), Fix: podFix(cloudcoreName)}
	case want == 1:
		return Result{Status: Warn, Message: "cloudcore has one replica: while it restarts, no change reaches a gateway", Fix: "set two replicas in your kustomization or values"}
	}
	return passed("%d of %d replicas of cloudcore are ready", ready, want)
}

func podFix(name string) string {
	return fmt.Sprintf("kubectl describe pods -n %s -l app.kubernetes.io/name=%s", names.Namespace, name)
}

// judgePlacement judges where the pods of Frond's namespace run: one on a gateway depends on what it serves.
func judgePlacement(pods []corev1.Pod, gateways map[string]bool) Result {
	var wrong []string
	for i := range pods {
		if gateways[pods[i].Spec.NodeName] {
			wrong = append(wrong, pods[i].Name+" on "+pods[i].Spec.NodeName)
		}
	}
	if len(wrong) == 0 {
		return passed("no pod of %s runs on a gateway", names.Namespace)
	}
	return found(Fail, wrong, fmt.Sprintf("%d pods of %s run on gateways", len(wrong), names.Namespace), "apply the admission policies by frond init, and delete these pods")
}

// gatewaysOf returns the Nodes that are gateways.
func gatewaysOf(nodes []corev1.Node) (gateways []corev1.Node) {
	for i := range nodes {
		if _, is := nodes[i].Labels[names.LabelEdge]; is {
			gateways = append(gateways, nodes[i])
		}
	}
	return gateways
}

// nameSet returns the names of Nodes.
func nameSet(nodes []corev1.Node) map[string]bool {
	set := map[string]bool{}
	for i := range nodes {
		set[nodes[i].Name] = true
	}
	return set
}

// conditionCheck says what a condition of gateways' Nodes means to an operator.
type conditionCheck struct {
	kind corev1.NodeConditionType
	// healthy is the status that is not reported.
	healthy corev1.ConditionStatus
	// required: a gateway without the condition is reported, too.
	required bool
	// linked: gateways without a link are left to the check of links.
	linked  bool
	status  Status
	good    string
	message string
	fix     string
}

// countUnhealthy counts the gateways whose condition is wrong.
func (k conditionCheck) countUnhealthy(gateways []corev1.Node) Result {
	if len(gateways) == 0 {
		return skipped("there are no gateways")
	}
	down := withoutLink(gateways)
	var wrong []string
	for i := range gateways {
		if k.linked && down[gateways[i].Name] {
			continue
		}
		if reason := k.fault(&gateways[i]); reason != "" {
			wrong = append(wrong, fmt.Sprintf("%s (%s)", gateways[i].Name, reason))
		}
	}
	if len(wrong) == 0 {
		return passed("%s: all %d gateways", k.good, len(gateways))
	}
	return found(k.status, wrong, fmt.Sprintf("%d of %d gateways %s", len(wrong), len(gateways), k.message), k.fix)
}

// fault returns the reason why a gateway's condition is reported, "" if it is not.
func (k conditionCheck) fault(gateway *corev1.Node) string {
	for _, c := range gateway.Status.Conditions {
		switch {
		case c.Type != k.kind:
		case c.Status == k.healthy:
			return ""
		default:
			return c.Reason
		}
	}
	if k.required {
		return "NotReported"
	}
	return ""
}

// daemonSetOf returns the DaemonSet of a pod, "" if it has none.
func daemonSetOf(p *corev1.Pod) string {
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
		return p.Namespace + "/" + owner.Name
	}
	return ""
}

// judgeDaemonSets names DaemonSets whose pods do not run on gateways: those of a cloud's network or storage mostly cannot. down are gateways without
// a link, whose pods nobody knows.
func judgeDaemonSets(pods []corev1.Pod, down map[string]bool, now time.Time) Result {
	stuck := map[string]int{}
	for i := range pods {
		p := &pods[i]
		if down[p.Spec.NodeName] || now.Sub(p.CreationTimestamp.Time) < settleTime || isReady(p) {
			continue
		}
		stuck[daemonSetOf(p)]++
	}
	if len(stuck) == 0 {
		return passed("all pods of DaemonSets on gateways run")
	}
	var objects []string
	for name, pods := range stuck {
		objects = append(objects, fmt.Sprintf("%s (%d pods)", name, pods))
	}
	return found(Warn, objects, fmt.Sprintf("%d DaemonSets have pods on gateways that do not run", len(stuck)),
		"keep them off gateways: affinity on "+names.LabelEdge+", or frond init --taint-gateways")
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// judgeRoom judges whether a hub of some servers finds Nodes: each server needs one of its own, and none runs on a gateway.
func judgeRoom(nodes []corev1.Node, servers int) Result {
	usable := 0
	for i := range nodes {
		n := &nodes[i]
		_, edge := n.Labels[names.LabelEdge]
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule })
		if !edge && !n.Spec.Unschedulable && !tainted {
			usable++
		}
	}
	if usable < servers {
		return Result{
			Status: Fail, Message: fmt.Sprintf("%d Nodes take pods; a hub of %d servers needs as many, one each", usable, servers),
			Fix: "add Nodes, remove taints, or plan a smaller hub: frond init --hub-servers 1",
		}
	}
	return passed("%d Nodes take pods, and a hub of %d servers needs as many as it has servers", usable, servers)
}

func judgeStorage(classes []storagev1.StorageClass) Result {
	for i := range classes {
		if classes[i].Annotations[defaultClass] == "true" {
			return passed("the hub's disks come from StorageClass %s, the default", classes[i].Name)
		}
	}
	return Result{
		Status: Warn, Message: fmt.Sprintf("none of %d StorageClasses is the default: the hub's servers would wait for their disks", len(classes)),
		Fix: "mark one as the default, or name one in your kustomization or values (Helm)",
	}
}

func judgeRights(missing []string, asked int) Result {
	if len(missing) == 0 {
		return passed("you have the %d rights that frond init needs", asked)
	}
	return found(Fail, missing, fmt.Sprintf("%d of %d rights that frond init needs are missing", len(missing), asked), "run it as a cluster administrator")
}

func judgeKubeEdge(runs bool) Result {
	if runs {
		return Result{
			Status: Warn, Message: "KubeEdge's cloudcore is installed here: it and Frond would both write the same kinds",
			Fix: "docs/operations/kubeedge-devices.md says how to move",
		}
	}
	return passed("KubeEdge is not installed here")
}
