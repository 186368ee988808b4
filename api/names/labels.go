package names

import corev1 "k8s.io/api/core/v1"

// The labels of groups of Nodes. cloudcore writes them for other programs, and for the node selectors of pods; it takes no decision from them.
const (
	// LabelNodeGroup of a Node is the name of the NodeGroup that it is a member of; KubeEdge's name.
	LabelNodeGroup = "apps.kubeedge.io/belonging-to"
	// LabelOfflineAutonomy of a pod, with the value OfflineAutonomy, keeps it on its node while that is unreachable; KubeEdge's name.
	LabelOfflineAutonomy = "app-offline.kubeedge.io"
	// OfflineAutonomy is the value of LabelOfflineAutonomy that takes effect.
	OfflineAutonomy = "autonomy"
)

// LabelLoadtestRun of a Node, and the key of its taint, is the run of frond loadtest that simulates the gateway. A run deletes no Node with
// another value.
const LabelLoadtestRun = "loadtest.frond.io/run"

// KubeletLabels returns the labels that a kubelet updates in its own Node when it starts, and that cloudcore takes from a gateway's
// reports. A gateway can set them to anything, so nothing that matters may be decided by them.
func KubeletLabels() []string {
	return []string{
		corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelInstanceTypeStable, corev1.LabelInstanceType,
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	}
}

// ZoneLabels returns the labels that say where a Node is. A kubelet may set them when it creates its Node; cloudcore takes them from no later report.
func ZoneLabels() []string {
	return []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion}
}

// FinalizerNodeGroup keeps a deleted NodeGroup until its Nodes and pods have left it; KubeEdge's name.
const FinalizerNodeGroup = "apps.kubeedge.io/nodegroup-controller"
