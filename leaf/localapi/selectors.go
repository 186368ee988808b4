package localapi

import (
	"fmt"
	"strconv"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// listFilter is the selection of a list or watch. The zero filter matches everything.
type listFilter struct {
	name, namespace string // exact matches extracted from the field selector; "" matches all
	labels          labels.Selector
	fields          fields.Selector
	selectable      func(runtime.Object) fields.Set
}

func newListFilter(r *resource, opts *metainternalversion.ListOptions) listFilter {
	f := listFilter{selectable: r.selectable}
	if opts == nil {
		return f
	}
	if s := opts.LabelSelector; s != nil && !s.Empty() {
		f.labels = s
	}
	if s := opts.FieldSelector; s != nil && !s.Empty() {
		f.name, _ = s.RequiresExactMatch(fieldName)
		f.namespace, _ = s.RequiresExactMatch(fieldNamespace)
		for _, q := range s.Requirements() {
			if (q.Field != fieldName || q.Value != f.name) && (q.Field != fieldNamespace || q.Value != f.namespace) {
				f.fields = s
			}
		}
	}
	return f
}

// mayMatch evaluates the part of the filter that a key answers, so that most events of a busy resource cost no decoding.
func (f *listFilter) mayMatch(namespace, name string) bool {
	return (f.name == "" || f.name == name) && (f.namespace == "" || f.namespace == namespace)
}

// needsObject reports whether mayMatch leaves the decision open.
func (f *listFilter) needsObject() bool { return f.labels != nil || f.fields != nil }

func (f *listFilter) matches(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	if err != nil || !f.mayMatch(m.GetNamespace(), m.GetName()) {
		return false
	}
	if f.labels != nil && !f.labels.Matches(labels.Set(m.GetLabels())) {
		return false
	}
	if f.fields == nil {
		return true
	}
	set := fields.Set{}
	if f.selectable != nil {
		set = f.selectable(obj)
	}
	set[fieldName], set[fieldNamespace] = m.GetName(), m.GetNamespace()
	return f.fields.Matches(set)
}

// fieldConvertor validates the field labels of a resource; everything else is the scheme's.
type fieldConvertor struct {
	runtime.ObjectConvertor
	resource *resource
}

func (c fieldConvertor) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == fieldName || label == fieldNamespace || c.resource.anyLabel {
		return label, value, nil
	}
	if c.resource.selectable != nil {
		if _, ok := c.resource.selectable(c.resource.object())[label]; ok {
			return label, value, nil
		}
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

func podFields(obj runtime.Object) fields.Set {
	pod := obj.(*corev1.Pod)
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             ip,
		"status.podIPs":            ip,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}

func nodeFields(obj runtime.Object) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(obj.(*corev1.Node).Spec.Unschedulable)}
}

func secretFields(obj runtime.Object) fields.Set {
	return fields.Set{"type": string(obj.(*corev1.Secret).Type)}
}

func serviceFields(obj runtime.Object) fields.Set {
	svc := obj.(*corev1.Service)
	return fields.Set{"spec.clusterIP": svc.Spec.ClusterIP, "spec.type": string(svc.Spec.Type)}
}

func certificateRequestFields(obj runtime.Object) fields.Set {
	return fields.Set{fieldNodeName: string(obj.(*certificatesv1.PodCertificateRequest).Spec.NodeName)}
}

func eventFields(obj runtime.Object) fields.Set {
	e := obj.(*corev1.Event)
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             source,
		"source":                         source,
		"type":                           e.Type,
	}
}

// preservePod allows a write to a pod's status to change only the status and the free metadata.
func preservePod(next, last runtime.Object, _ string) {
	n, l := next.(*corev1.Pod), last.(*corev1.Pod)
	n.Spec = l.Spec
	n.OwnerReferences = l.OwnerReferences
	// Upstream's status strategy keeps the QoS class too: it is set once, at creation.
	if l.Status.QOSClass != "" {
		n.Status.QOSClass = l.Status.QOSClass
	}
}

// preserveNode allows nodes/status to change the status and nodes everything else, as the apiserver's two strategies do.
func preserveNode(next, last runtime.Object, subresource string) {
	n, l := next.(*corev1.Node), last.(*corev1.Node)
	if subresource == "status" {
		n.Spec = l.Spec
		return
	}
	n.Status = l.Status
}

// preserveMeta restores the metadata that no write may change.
func preserveMeta(next, last metav1.Object) {
	next.SetUID(last.GetUID())
	next.SetCreationTimestamp(last.GetCreationTimestamp())
	next.SetDeletionTimestamp(last.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(last.GetDeletionGracePeriodSeconds())
	next.SetGeneration(last.GetGeneration())
	next.SetManagedFields(nil)
	next.SetSelfLink("")
}
