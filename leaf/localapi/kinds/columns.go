package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

const noneCell = "<none>"

// columnDefinitions returns column definitions of type string. Those after "|" are printed only by `-o wide`, up to another
// "|". The first column that is called Name gets the format by which kubectl prefixes the kind.
func columnDefinitions(names ...string) []metav1.TableColumnDefinition {
	var out []metav1.TableColumnDefinition
	var priority int32
	for _, name := range names {
		if name == "|" {
			priority = 1 - priority
			continue
		}
		c := metav1.TableColumnDefinition{Name: name, Type: "string", Priority: priority}
		if name == "Name" {
			c.Format = "name"
		}
		out = append(out, c)
	}
	return out
}

// formatAge formats a time as kubectl does: "5m", or "<unknown>" for a time that was never set.
func formatAge(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func orNone(s string) string {
	if s == "" {
		return noneCell
	}
	return s
}

func nodeColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Name", "Status", "Roles", "Age", "Version", "|",
		"Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
}

func nodeCells(obj runtime.Object) []any {
	node := obj.(*corev1.Node)
	status := "Unknown"
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if node.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	var roles []string
	for k, v := range node.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if k == "kubernetes.io/role" && v != "" {
			roles = append(roles, v)
		}
	}
	slices.Sort(roles)
	address := func(kind corev1.NodeAddressType) string {
		for _, a := range node.Status.Addresses {
			if a.Type == kind {
				return a.Address
			}
		}
		return noneCell
	}
	known := func(s string) string {
		if s == "" {
			return "<unknown>"
		}
		return s
	}
	info := node.Status.NodeInfo
	return []any{
		node.Name, status, orNone(strings.Join(slices.Compact(roles), ",")), formatAge(node.CreationTimestamp), info.KubeletVersion,
		address(corev1.NodeInternalIP), address(corev1.NodeExternalIP),
		known(info.OSImage), known(info.KernelVersion), known(info.ContainerRuntimeVersion),
	}
}

func configMapColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Name", "Data", "Age")
}

func configMapCells(obj runtime.Object) []any {
	cm := obj.(*corev1.ConfigMap)
	return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), formatAge(cm.CreationTimestamp)}
}

func secretColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Name", "Type", "Data", "Age")
}

func secretCells(obj runtime.Object) []any {
	s := obj.(*corev1.Secret)
	return []any{s.Name, string(s.Type), int64(len(s.Data)), formatAge(s.CreationTimestamp)}
}

func serviceColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "|", "Selector")
}

func serviceCells(obj runtime.Object) []any {
	svc := obj.(*corev1.Service)
	ip := noneCell
	if len(svc.Spec.ClusterIPs) > 0 {
		ip = svc.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, p := range svc.Spec.Ports {
		port := fmt.Sprint(p.Port)
		if p.NodePort > 0 {
			port += fmt.Sprintf(":%d", p.NodePort)
		}
		ports = append(ports, port+"/"+string(p.Protocol))
	}
	return []any{
		svc.Name, string(svc.Spec.Type), ip, externalIP(svc), orNone(strings.Join(ports, ",")), formatAge(svc.CreationTimestamp),
		labels.FormatLabels(svc.Spec.Selector),
	}
}

func externalIP(svc *corev1.Service) string {
	ips := slices.Clone(svc.Spec.ExternalIPs)
	switch svc.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return svc.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var given []string
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				given = append(given, in.IP)
			} else if in.Hostname != "" {
				given = append(given, in.Hostname)
			}
		}
		if ips = append(given, ips...); len(ips) == 0 {
			return "<pending>"
		}
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
	}
	return orNone(strings.Join(ips, ","))
}

func leaseColumns() []metav1.TableColumnDefinition { return columnDefinitions("Name", "Holder", "Age") }

func leaseCells(obj runtime.Object) []any {
	lease := obj.(*coordinationv1.Lease)
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	return []any{lease.Name, holder, formatAge(lease.CreationTimestamp)}
}

func eventColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Last Seen", "Type", "Reason", "Object", "|", "Subobject", "Source", "|", "Message", "|", "First Seen", "Count", "Name")
}

func eventCells(obj runtime.Object) []any {
	e := obj.(*corev1.Event)
	first, last, count := e.FirstTimestamp, e.LastTimestamp, e.Count
	if first.IsZero() {
		first = metav1.Time(e.EventTime)
	}
	if last.IsZero() {
		last = first
	}
	if e.Series != nil {
		last, count = metav1.Time(e.Series.LastObservedTime), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := cmp.Or(e.Source.Component, e.ReportingController)
	if host := cmp.Or(e.Source.Host, e.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{
		formatAge(last), e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), formatAge(first), int64(count), e.Name,
	}
}
