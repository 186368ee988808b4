package swarm

import (
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// nodeNetwork is the network of the Nodes' addresses, of those that RFC 2544 reserves for benchmarks.
	nodeNetwork = "198.19.%d.%d"
	// kubeletPort is the port of a kubelet; nothing listens there.
	kubeletPort = 10250
)

// nodeAddress returns the address of a Node.
func nodeAddress(index int) string {
	const octet = 250
	return fmt.Sprintf(nodeNetwork, index/octet%octet, index%octet+1)
}

// nodeReport returns the report of a gateway's Node; uid is "" until the cloud has created it.
func (s *Swarm) nodeReport(name, address, uid string, now time.Time) (wire.Message, error) {
	stamp := metav1.NewTime(now.UTC().Truncate(time.Second))
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			names.LabelLoadtestRun: s.cfg.Run, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: names.LabelLoadtestRun, Value: s.cfg.Run, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: s.cfg.KubeletVersion, OperatingSystem: "linux", Architecture: runtime.GOARCH, ContainerRuntimeVersion: "loadtest://0",
				MachineID: name, SystemUUID: name, BootID: name, OSImage: "frond loadtest",
			},
			Capacity: capacity(), Allocatable: capacity(),
		},
	}
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		reason string
	}{
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"},
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"},
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: c.kind, Status: c.status, Reason: c.reason, Message: "simulated by frond loadtest", LastHeartbeatTime: stamp, LastTransitionTime: s.began,
		})
	}
	return marshalNode(node, uid, now)
}

func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("16Gi"),
	}
}
