// Package names defines the names that Frond writes into Kubernetes objects: labels, annotations, types of addresses, conditions with their
// reasons, reasons of Events, and field managers. Operators, alerts and other programs read them; none is spelled anywhere else.
package names

// Namespace holds the Secrets that frond init makes, and what cloudcore shares. None of its objects is given to a gateway.
const Namespace = "frond-system"

// The labels of the Nodes that are gateways; their values are empty. They are KubeEdge's two labels, as users' manifests name either. A
// node cannot set them (NodeRestriction): cloudcore does.
const (
	LabelEdge  = "node-role.kubernetes.io/edge"
	LabelAgent = "node-role.kubernetes.io/agent"
)

const (
	// LabelProtected marks a namespace whose pods never run on a gateway; its value is Protected. Frond's own namespace is protected
	// without it.
	LabelProtected = "frond.io/protected"
	// Protected is the value of LabelProtected that takes effect.
	Protected = "true"
)

// Field managers and components of Events.
const (
	// ManagerCloudcore writes as cloudcore itself.
	ManagerCloudcore = "frond-cloudcore"
	// ManagerInstall writes as an administrator: frond init, frond token, frond backup.
	ManagerInstall = "frond-init"
	// ControllerCloudcore is the reporting controller of cloudcore's Events.
	ControllerCloudcore = "frond.io/cloudcore"
)
