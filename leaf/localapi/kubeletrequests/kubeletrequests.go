// Package kubeletrequests lists what a kubelet asks of its API, and how the local API treats each request.
package kubeletrequests

import (
	"fmt"
	"strings"
)

// Treatment is how this server handles one kind of request of the node's kubelet.
type Treatment string

const (
	// Delivered means that reads are answered from the store, with or without a link. For an object that is not stored the cloud is
	// asked, and without a link the answer is 503. A list is a 503 until the store is known to be complete.
	Delivered Treatment = "delivered"
	// Local means that the request is answered here. Changes that concern the cloud are sent as a report.
	Local Treatment = "local"
	// Relayed means that the request is forwarded to Kubernetes as the node; the Node authorizer and NodeRestriction check it. 503 without a link.
	Relayed Treatment = "relayed"
	// Refused means that the request is refused with a status that gives the reason.
	Refused Treatment = "refused"
)

// KubeletRequest is one row of the table of a kubelet's possible requests.
type KubeletRequest struct {
	// API is the group and version, or the version alone of the core group; "any version" and "discovery" as in the list of requests.
	API, Resource string
	Verbs         []string
	Treatment     Treatment
	// Note is a further remark.
	Note string
}

// Requests returns the lines of the list of requests that a row covers.
func (k KubeletRequest) Requests() []string {
	lines := make([]string, 0, len(k.Verbs))
	for _, verb := range k.Verbs {
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", k.API, k.Resource, verb)), " "))
	}
	return lines
}

// KubeletRequests returns the table of all possible requests of this version's kubelet. One test compares it with the
// requests in the kubelet's code (edged/kubelet/testdata/kubelet-requests.txt), and another one tries each row.
func KubeletRequests() []KubeletRequest {
	const certs, storageAPI, devices = "certificates.k8s.io/v1", "storage.k8s.io/v1", "resource.k8s.io/v1"
	read, get := []string{"list", "watch"}, []string{"get"}
	const judged = "Kubernetes refuses it to a node; this code of the kubelet is a controller's"
	return []KubeletRequest{
		{"v1", "pods", []string{"get", "list", "watch"}, Delivered, "its own pods: one that is not held does not exist, once the store has attached"},
		{"v1", "pods", []string{"create"}, Relayed, "mirror pods of static ones"},
		{"v1", "pods", []string{"delete"}, Local, "with a grace of 0, the end of a pod, which is reported; any other is relayed"},
		{"v1", "pods/status", []string{"patch"}, Local, "reported"},
		{"v1", "nodes", []string{"get", "list", "watch"}, Delivered, "its own Node"},
		{"v1", "nodes", []string{"create"}, Local, "made by Kubernetes while the link is up, else here and reported"},
		{"v1", "nodes", []string{"patch"}, Local, "reported"},
		{"v1", "nodes/status", []string{"patch"}, Local, "reported"},
		{"v1", "configmaps", []string{"get", "list", "watch"}, Delivered, "those that its pods refer to; lists and watches by name"},
		{"v1", "secrets", []string{"get", "list", "watch"}, Delivered, "those that its pods refer to; lists and watches by name"},
		{"v1", "serviceaccounts", get, Delivered, "those of its pods"},
		{"v1", "serviceaccounts/token", []string{"create"}, Relayed, "without a link the last answer, which is kept sealed"},
		{"v1", "persistentvolumeclaims", get, Delivered, "those of its pods"},
		{"v1", "persistentvolumeclaims/status", []string{"patch"}, Relayed, "a volume that grew"},
		{"v1", "persistentvolumes", get, Delivered, "those of its pods"},
		{"v1", "persistentvolumes", []string{"patch"}, Relayed, judged},
		{"v1", "services", read, Delivered, "those of its pods' namespaces and `default/kubernetes`, and what programs on the gateway follow"},
		{"v1", "events", []string{"create", "update", "patch"}, Local, "the newest in memory, and reported"},
		{"coordination.k8s.io/v1", "leases", []string{"get", "create", "update", "delete"}, Local, "in memory; the node's Lease in Kubernetes is renewed by cloudcore, by heartbeats"},
		{"discovery.k8s.io/v1", "endpointslices", read, Delivered, "what programs on the gateway follow"},
		{"node.k8s.io/v1", "runtimeclasses", read, Delivered, "all"},
		{storageAPI, "csidrivers", read, Delivered, "all"},
		{storageAPI, "csinodes", get, Delivered, "its own"},
		{storageAPI, "csinodes", []string{"create", "update"}, Local, "made by Kubernetes while the link is up; reported"},
		{storageAPI, "csinodes", []string{"delete"}, Relayed, "one that Kubernetes does not know yet is deleted here"},
		{storageAPI, "csinodes/status", []string{"update"}, Relayed, "feature CSIVolumeHealth, off by default"},
		{storageAPI, "volumeattachments", get, Delivered, "its own"},
		{storageAPI, "volumeattachments", []string{"create", "delete"}, Relayed, judged},
		{certs, "clustertrustbundles", read, Delivered, "those that its pods project"},
		{"certificates.k8s.io/v1beta1", "clustertrustbundles", read, Delivered, "the same, where the cluster serves no newer version"},
		{"certificates.k8s.io/v1alpha1", "clustertrustbundles", read, Delivered, "the same, where the cluster serves no newer version"},
		{certs, "podcertificaterequests", []string{"create"}, Relayed, "for pods that are bound to the node, and no others"},
		{certs, "podcertificaterequests", read, Delivered, "its own Node's"},
		{certs, "certificatesigningrequests", []string{"create", "get", "list"}, Relayed, "cloudcore lets through requests of the signer kubernetes.io/kubelet-serving alone"},
		{certs, "certificatesigningrequests", []string{"watch"}, Relayed, "of one name, by asking for it again"},
		{"certificates.k8s.io/v1beta1", "certificatesigningrequests", []string{"create", "get", "list"}, Relayed, "for Kubernetes before 1.19, which has no v1"},
		{"certificates.k8s.io/v1beta1", "certificatesigningrequests", []string{"watch"}, Refused, "405: Kubernetes has v1 since 1.19"},
		{devices, "resourceclaims", get, Delivered, "those of its pods, also of templates and of extended resources"},
		{devices, "resourceslices", []string{"deletecollection"}, Relayed, "its own Node's, at the kubelet's start and after a driver is gone; tried again until the link is up"},
		{"any version", "tokenreviews", []string{"post"}, Relayed, "without a link judged here, by the keys in the store"},
		{"any version", "subjectaccessreviews", []string{"post"}, Relayed, "without a link judged here, by the roles in the store"},
		{"discovery", "", get, Local, "what the cluster last said that it serves; before it ever did, this table"},
	}
}
