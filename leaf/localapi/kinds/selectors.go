package kinds

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
	// FieldName is the field label of an object's name.
	FieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// Filter is the selection of a list or watch. The zero filter matches everything.
type Filter struct {
	Name, Namespace string // exact matches extracted from the field selector; "" matches all
	labels          labels.Selector
	fields          fields.Selector
	selectable      func(runtime.Object) fields.Set
}

// NewFilter returns the filter of a list's options; nil options match everything.
func NewFilter(r *Resource, opts *metainternalversion.ListOptions) Filter {
	f := Filter{selectable: r.selectable}
	if opts == nil {
		return f
	}
	if s := opts.LabelSelector; s != nil && !s.Empty() {
		f.labels = s
	}
	if s := opts.FieldSelector; s != nil && !s.Empty() {
		f.Name, _ = s.RequiresExactMatch(FieldName)
		f.Namespace, _ = s.RequiresExactMatch(fieldNamespace)
		for _, q := range s.Requirements() {
			if (q.Field != FieldName || q.Value != f.Name) && (q.Field != fieldNamespace || q.Value != f.Namespace) {
				f.fields = s
			}
		}
	}
	return f
}

// MayMatch evaluates the part of the filter that a key answers, so that most events of a busy resource cost no decoding.
func (f *Filter) MayMatch(namespace, name string) bool {
	return (f.Name == "" || f.Name == name) && (f.Namespace == "" || f.Namespace == namespace)
}

// NeedsObject reports whether mayMatch leaves the decision open.
func (f *Filter) NeedsObject() bool { return f.labels != nil || f.fields != nil }

// Matches reports whether an object matches.
func (f *Filter) Matches(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	if err != nil || !f.MayMatch(m.GetNamespace(), m.GetName()) {
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
	set[FieldName], set[fieldNamespace] = m.GetName(), m.GetNamespace()
	return f.fields.Matches(set)
}

// FieldConvertor validates the field labels of a resource; everything else is the scheme's.
type FieldConvertor struct {
	runtime.ObjectConvertor
	resource *Resource
}

// NewFieldConvertor returns a FieldConvertor that passes everything but field labels on.
func NewFieldConvertor(next runtime.ObjectConvertor, resource *Resource) FieldConvertor {
	return FieldConvertor{next, resource}
}

// ConvertFieldLabel refuses the field labels that the resource does not have.
func (c FieldConvertor) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == FieldName || label == fieldNamespace || c.resource.AnyLabel {
		return label, value, nil
	}
	if c.resource.selectable != nil {
		if _, ok := c.resource.selectable(c.resource.Object())[label]; ok {
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
	return fields.Set{FieldNodeName: string(obj.(*certificatesv1.PodCertificateRequest).Spec.NodeName)}
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

// PreserveMeta restores the metadata that no write may change.
func PreserveMeta(next, last metav1.Object) {
	next.SetUID(last.GetUID())
	next.SetCreationTimestamp(last.GetCreationTimestamp())
	next.SetDeletionTimestamp(last.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(last.GetDeletionGracePeriodSeconds())
	next.SetGeneration(last.GetGeneration())
	next.SetManagedFields(nil)
	next.SetSelfLink("")
}
