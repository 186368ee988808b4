package cloud

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/frond-edge/frond/cloud/epoch"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/controllers/applications"
	"github.com/frond-edge/frond/controllers/autonomy"
	"github.com/frond-edge/frond/controllers/csrs"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/controllers/devicewarnings"
	"github.com/frond-edge/frond/controllers/evictions"
	"github.com/frond-edge/frond/controllers/groups"
	"github.com/frond-edge/frond/controllers/holds"
	"github.com/frond-edge/frond/controllers/jobs"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/controllers/ports"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/controllers/scopes"
)

// Rules returns all RBAC rules that cloudcore needs, without those for the scopes that gateways request (package
// scopes). The rules of an installation are in deploy/rbac, which gives the reasons, and restricts some of them to namespaces.
func Rules() []rbacv1.PolicyRule {
	return slices.Concat(kinds.Rules(), reports.Rules(), reports.CallRules(), nodes.Rules(), holds.Rules(), autonomy.Rules(), groups.Rules(), applications.Rules(),
		scopes.Rules(), ports.Rules(), csrs.Rules(), evictions.Rules(), identity.Rules(), inspect.Rules(), // cloud/gateway makes the same reviews
		epoch.Rules(), kube.Rules(), devicestatus.Rules(), devicewarnings.Rules(), jobs.Rules())
}
