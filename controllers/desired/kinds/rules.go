package kinds

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/controllers/references"
)

// Rules returns the RBAC rules that cloudcore needs to read what may reach a node.
// Scopes on other kinds need the right to list and watch these.
func Rules() []rbacv1.PolicyRule {
	rule := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
	}
	return []rbacv1.PolicyRule{
		rule("", "pods", "nodes", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes", "services"),
		rule("storage.k8s.io", "csinodes", "csidrivers", "volumeattachments"),
		rule("node.k8s.io", "runtimeclasses"),
		rule(references.CertificatesGroup, references.TrustBundlesResource, "podcertificaterequests"),
		rule(references.ResourceGroup, references.ClaimsResource, "resourceslices"),
		rule(devices.Group, devices.DevicesResource, devices.DeviceModelsResource),
		rule(jobs.Group, jobs.NodeTasksResource),
		rule("discovery.k8s.io", "endpointslices"),
		rule(rbacv1.GroupName, "clusterroles", "clusterrolebindings", "roles", "rolebindings"),
	}
}
