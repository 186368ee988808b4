package check

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

// Before returns the checks of a cluster on which Frond is to be installed, with a hub of some servers.
func Before(servers int) []Check {
	return []Check{
		{"kubernetes-version", "Frond is tested with this Kubernetes", checkVersion},
		{"rights", "you may install", func(ctx context.Context, c *Cluster) Result {
			rights := initRights()
			missing, err := c.refused(ctx, rights)
			if err != nil {
				return unread(err)
			}
			return judgeRights(missing, len(rights))
		}},
		{"room", "there are Nodes for the hub", func(_ context.Context, c *Cluster) Result {
			nodes, err := c.nodes()
			if err != nil {
				return unread(err)
			}
			return judgeRoom(nodes, servers)
		}},
		{"storage", "the hub gets its disks", func(ctx context.Context, c *Cluster) Result {
			classes, err := c.storageClasses(ctx)
			if err != nil {
				return unread(err)
			}
			return judgeStorage(classes)
		}},
		{"kubeedge", "nobody else writes the same kinds", func(ctx context.Context, c *Cluster) Result {
			runs, err := c.hasDeployment(ctx, "kubeedge", "cloudcore")
			if err != nil {
				return unread(err)
			}
			return judgeKubeEdge(runs)
		}},
	}
}

// Installed returns the checks of an installation and its gateways.
func Installed() []Check {
	checks := []Check{
		{"kubernetes-version", "Frond is tested with this Kubernetes", checkVersion},
		{"installation", "objects of frond init are complete and up to date", checkInstallation(judgeInstallation)},
		{"warnings", "frond init has no warnings", checkInstallation(judgeWarnings)},
		{"hub", "the hub's servers run", func(ctx context.Context, c *Cluster) Result {
			hub, _, err := c.workloads(ctx)
			if err != nil {
				return unread(err)
			}
			settings, err := install.ReadSettings(ctx, c.client)
			if err != nil {
				return unread(err)
			}
			return judgeHub(hub, settings.HubServers)
		}},
		{"cloudcore", "cloudcore's replicas run", func(ctx context.Context, c *Cluster) Result {
			_, cloudcore, err := c.workloads(ctx)
			if err != nil {
				return unread(err)
			}
			return judgeCloudcore(cloudcore)
		}},
		{"placement", "nothing of Frond's runs on gateways", func(_ context.Context, c *Cluster) Result {
			pods, err := c.pods()
			if err != nil {
				return unread(err)
			}
			return ofGateways(c, func(gateways []corev1.Node) Result { return judgePlacement(pods, nameSet(gateways)) })
		}},
	}
	for _, k := range gatewayChecks() {
		checks = append(checks, Check{k.ID, k.Asks, func(_ context.Context, c *Cluster) Result { return ofGateways(c, k.condition.countUnhealthy) }})
	}
	return append(checks, Check{"daemonsets", "DaemonSets run on gateways", func(ctx context.Context, c *Cluster) Result {
		return ofGateways(c, func(gateways []corev1.Node) Result {
			pods, err := c.daemonPods(ctx, nameSet(gateways))
			if err != nil {
				return unread(err)
			}
			return judgeDaemonSets(pods, withoutLink(gateways), c.now())
		})
	}})
}

func checkVersion(_ context.Context, c *Cluster) Result {
	server, err := c.version()
	if err != nil {
		return unread(err)
	}
	return judgeVersion(server)
}

func checkInstallation(judge func(install.Report) Result) func(context.Context, *Cluster) Result {
	return func(ctx context.Context, c *Cluster) Result {
		report, err := c.initReport(ctx)
		if err != nil {
			return unread(err)
		}
		return judge(report)
	}
}

func ofGateways(c *Cluster, judge func([]corev1.Node) Result) Result {
	nodes, err := c.nodes()
	if err != nil {
		return unread(err)
	}
	return judge(gatewaysOf(nodes))
}

// withoutLink returns the gateways that are not connected.
func withoutLink(gateways []corev1.Node) map[string]bool {
	down := map[string]bool{}
	for i := range gateways {
		down[gateways[i].Name] = true
		for _, c := range gateways[i].Status.Conditions {
			if c.Type == names.ConditionConnected && c.Status == corev1.ConditionTrue {
				delete(down, gateways[i].Name)
			}
		}
	}
	return down
}

// gatewayCheck is a check of one condition of all gateways.
type gatewayCheck struct {
	ID, Asks  string
	condition conditionCheck
}

func gatewayChecks() []gatewayCheck {
	return []gatewayCheck{
		{"links", "gateways are connected", conditionCheck{
			kind: names.ConditionConnected, healthy: corev1.ConditionTrue, required: true, status: Warn, good: "connected",
			message: "are not connected", fix: "frond status shows since when; the log of edgecore there says why (docs/operations/when-the-link-is-down.md)",
		}},
		{"kubelets", "gateways are Ready", conditionCheck{
			kind: corev1.NodeReady, healthy: corev1.ConditionTrue, required: true, linked: true, status: Warn, good: "Ready",
			message: "are not Ready", fix: "kubectl describe node says why",
		}},
		{"delivery", "gateways have what they should", conditionCheck{
			kind: names.ConditionUpToDate, healthy: corev1.ConditionTrue, linked: true, status: Warn, good: "up to date",
			message: "are connected and behind", fix: "frond sync NODE shows what is not there",
		}},
		{"held-deletions", "no deletions are held", conditionCheck{
			kind: names.ConditionDeletionsHeld, healthy: corev1.ConditionFalse, status: Warn, good: "nothing held",
			message: "have deletions that wait for you", fix: "docs/operations/deletions.md: frond confirm",
		}},
		{"identities", "keys of gateways are valid", conditionCheck{
			kind: names.ConditionIdentity, healthy: corev1.ConditionTrue, status: Warn, good: "valid",
			message: "have a key that is not renewed", fix: "docs/operations/join.md#the-identity",
		}},
		{"disks", "disks of gateways have space", conditionCheck{
			kind: names.ConditionStorage, healthy: corev1.ConditionTrue, status: Fail, good: "enough space",
			message: "have a full disk", fix: "docs/operations/disk.md",
		}},
	}
}

// initRights are rights of frond init that a user without administration lacks.
func initRights() []right {
	return []right{
		{"create", "", "namespaces", ""},
		{"create", "", "secrets", names.Namespace},
		{"create", "", "configmaps", names.Namespace},
		{"create", "apiextensions.k8s.io", "customresourcedefinitions", ""},
		{"create", "rbac.authorization.k8s.io", "clusterroles", ""},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", ""},
		{"create", "rbac.authorization.k8s.io", "clusterrolebindings", ""},
		{"create", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""},
		{"create", "apps", "statefulsets", names.Namespace},
		{"create", "apps", "deployments", names.Namespace},
	}
}
