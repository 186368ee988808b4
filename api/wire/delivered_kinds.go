package wire

// KindAbsence says why the cloud sends nothing of a kind.
type KindAbsence string

const (
	// KindNotServed says that the apiserver has no such kind in any version that the cloud knows.
	KindNotServed KindAbsence = "NotServed"
	// KindForbidden says that cloudcore may not read it.
	KindForbidden KindAbsence = "Forbidden"
)

// DeliveredKinds is the object that says which of the kinds that not every Kubernetes has are sent to nodes. A node that holds it
// knows that what it has of such a kind is all that concerns it. A kind that is not in it is one of which the cloud does not know
// yet whether there is any.
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

// DeliveredKind is one kind. Version is the one that its objects come in; where it is empty, Absence is the reason.
type DeliveredKind struct {
	Group    string      `json:"group"`
	Resource string      `json:"resource"`
	Version  string      `json:"version,omitempty"`
	Absence  KindAbsence `json:"absence,omitempty"`
}

// DeliveredKindsKey is the key of the message whose object is DeliveredKinds.
func DeliveredKindsKey() Key { return Key{Group: frondGroup, Resource: "kinds", Name: "delivered"} }

// NewDeliveredKinds makes the object.
func NewDeliveredKinds(kinds []DeliveredKind) DeliveredKinds {
	return DeliveredKinds{
		APIVersion: frondGroup + "/v1", Kind: "DeliveredKinds", Metadata: ScopeMarkMeta{Name: DeliveredKindsKey().Name},
		Spec: DeliveredKindsSpec{Kinds: kinds},
	}
}

// Find returns what is said of a kind; false where nothing is.
func (d DeliveredKinds) Find(group, resource string) (DeliveredKind, bool) {
	for _, k := range d.Spec.Kinds {
		if k.Group == group && k.Resource == resource {
			return k, true
		}
	}
	return DeliveredKind{}, false
}
