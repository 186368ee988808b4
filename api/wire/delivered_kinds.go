package wire

// KindAbsence is the reason why the cloud delivers nothing of a kind.
type KindAbsence string

const (
	// KindNotServed says that the apiserver has no such kind in any version that the cloud knows.
	KindNotServed KindAbsence = "NotServed"
	// KindForbidden says that cloudcore may not read it.
	KindForbidden KindAbsence = "Forbidden"
)

// DeliveredKinds is the object that lists which of the optional kinds, those that not every Kubernetes has, are delivered to nodes. A node
// that holds it knows that its objects of such a kind are complete. For a kind that is not listed the cloud does not know yet whether it
// exists.
type DeliveredKinds struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Metadata   ScopeMarkMeta      `json:"metadata"`
	Spec       DeliveredKindsSpec `json:"spec"`
}

// DeliveredKindsSpec lists the kinds, sorted by group and resource.
type DeliveredKindsSpec struct {
	Kinds []DeliveredKind `json:"kinds"`
}

// DeliveredKind is one kind. Version is the version of its objects; where it is empty, Absence is the reason.
type DeliveredKind struct {
	Group    string      `json:"group"`
	Resource string      `json:"resource"`
	Version  string      `json:"version,omitempty"`
	Absence  KindAbsence `json:"absence,omitempty"`
}

// DeliveredKindsKey is the key of the message whose object is DeliveredKinds.
func DeliveredKindsKey() Key { return Key{Group: frondGroup, Resource: "kinds", Name: "delivered"} }

// NewDeliveredKinds returns the object for a list of kinds.
func NewDeliveredKinds(kinds []DeliveredKind) DeliveredKinds {
	return DeliveredKinds{
		APIVersion: frondGroup + "/v1", Kind: "DeliveredKinds", Metadata: ScopeMarkMeta{Name: DeliveredKindsKey().Name},
		Spec: DeliveredKindsSpec{Kinds: kinds},
	}
}

// Find returns the entry of a kind; false if there is none.
func (d DeliveredKinds) Find(group, resource string) (DeliveredKind, bool) {
	for _, k := range d.Spec.Kinds {
		if k.Group == group && k.Resource == resource {
			return k, true
		}
	}
	return DeliveredKind{}, false
}
