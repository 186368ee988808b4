package topology_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/controllers/desired/topology"
)

func TestPolicyOf(t *testing.T) {
	const kubeEdge, own = "apps.kubeedge.io/service-topology", "frond.io/service-topology"
	local := corev1.ServiceSpec{ClusterIP: "10.96.0.7", InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)}
	with := func(change func(*corev1.ServiceSpec)) corev1.ServiceSpec {
		spec := local
		change(&spec)
		return spec
	}
	for name, tt := range map[string]struct {
		annotations map[string]string
		spec        corev1.ServiceSpec
		want        topology.Policy
		fault       bool
	}{
		"none":                          {nil, corev1.ServiceSpec{}, topology.Cluster, false},
		"KubeEdge's":                    {map[string]string{kubeEdge: "range-nodegroup"}, corev1.ServiceSpec{}, topology.Group, false},
		"group":                         {map[string]string{own: "group"}, corev1.ServiceSpec{}, topology.Group, false},
		"zone":                          {map[string]string{own: "zone"}, corev1.ServiceSpec{}, topology.Zone, false},
		"node":                          {map[string]string{own: "node"}, corev1.ServiceSpec{}, topology.Node, false},
		"own before KubeEdge's":         {map[string]string{own: "node", kubeEdge: "range-nodegroup"}, corev1.ServiceSpec{}, topology.Node, false},
		"a mistake is closed":           {map[string]string{own: "Group"}, corev1.ServiceSpec{}, topology.Node, true},
		"an empty value is a mistake":   {map[string]string{own: ""}, corev1.ServiceSpec{}, topology.Node, true},
		"a mistake in KubeEdge's":       {map[string]string{kubeEdge: "nodegroup"}, corev1.ServiceSpec{}, topology.Node, true},
		"local traffic":                 {nil, local, topology.Local, false},
		"local traffic, asked for all":  {map[string]string{own: "cluster"}, local, topology.Cluster, false},
		"annotation before the policy":  {map[string]string{own: "group"}, local, topology.Group, false},
		"names of a headless Service":   {nil, with(func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }), topology.Cluster, false},
		"node ports":                    {nil, with(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }), topology.Cluster, false},
		"load balancer":                 {nil, with(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }), topology.Cluster, false},
		"external addresses":            {nil, with(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.1"} }), topology.Cluster, false},
		"traffic to the whole cluster":  {nil, corev1.ServiceSpec{InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster)}, topology.Cluster, false},
		"local traffic of type unknown": {nil, with(func(s *corev1.ServiceSpec) { s.Type = "New" }), topology.Cluster, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Service{Spec: tt.spec}
			s.Annotations = tt.annotations
			got, err := topology.PolicyOf(s)
			if got != tt.want || (err != nil) != tt.fault {
				t.Errorf("policy %d, %v; want %d, fault %v", got, err, tt.want, tt.fault)
			}
		})
	}
}
