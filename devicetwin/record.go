package devicetwin

import (
	"cmp"
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Record is all that a gateway keeps of one device.
type Record struct {
	// UID is of the Device. A Device that was created again under the same name has a record of its own.
	UID types.UID `json:"uid,omitempty"`
	// Generation is of the Device whose desired values are Desired.
	Generation int64 `json:"generation,omitempty"`
	// Desired are the values of spec.properties, also those that cannot be applied (see PropertySpec.Refused).
	Desired map[string]Desired `json:"desired,omitempty"`
	// Reported are the values that the device has.
	Reported map[string]Sample `json:"reported,omitempty"`
	// Observed are the desired values that the app or mapper works with, as it says.
	Observed map[string]Sample `json:"observed,omitempty"`
	// Required are the properties that cannot be deleted by a message: their optional was once false.
	Required map[string]bool `json:"required,omitempty"`
	// State is a word of the app's or mapper's.
	State Sample `json:"state,omitzero"`
	// LastOnline is the time of the last state that says that the device was there, in milliseconds, 0 if there was none.
	LastOnline int64 `json:"lastOnline,omitempty"`
}

// Desired is the desired value of a property.
type Desired struct {
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Sample is a value with its time.
type Sample struct {
	Value string `json:"value"`
	// Type is a type of KubeEdge's twin: string, int, integer, float, double, boolean, bytes. Empty is string.
	Type string `json:"type,omitempty"`
	// Time is when the device had the value, in milliseconds.
	Time int64 `json:"time"`
	// Order decides which of two samples is newer.
	Order Order `json:"order"`
	// Deleted: the property has no value since Time.
	Deleted bool `json:"deleted,omitempty"`
}

// Order orders the samples of a property.
type Order struct {
	// Time is that of the sample, unless a clock was set back (see Admit).
	Time int64 `json:"time"`
	// Sequence orders samples of one time: by the reception of their messages, in nanoseconds.
	Sequence uint64 `json:"sequence"`
}

// Exists reports whether there is a value.
func (s Sample) Exists() bool { return s.Order != (Order{}) && !s.Deleted }

// compare orders two samples. Two samples of one order are the same; comparing all fields gives damaged ones an order, too.
func (s Sample) compare(other Sample) int {
	return cmp.Or(
		cmp.Compare(s.Order.Time, other.Order.Time), cmp.Compare(s.Order.Sequence, other.Order.Sequence),
		cmp.Compare(s.Time, other.Time), cmp.Compare(s.Value, other.Value), cmp.Compare(s.Type, other.Type),
		cmp.Compare(asInt(s.Deleted), asInt(other.Deleted)),
	)
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Merge returns a record with the newest parts of two records of the same Device. It is commutative, associative and idempotent: any order of
// any messages, repeated or not, gives the same record. It changes neither argument.
func Merge(a, b Record) Record {
	merged := Record{
		UID: max(a.UID, b.UID), LastOnline: max(a.LastOnline, b.LastOnline),
		Reported: mergeSamples(a.Reported, b.Reported), Observed: mergeSamples(a.Observed, b.Observed),
		Generation: a.Generation, Desired: a.Desired, State: newest(a.State, b.State),
	}
	if b.Generation > a.Generation {
		merged.Generation, merged.Desired = b.Generation, b.Desired
	}
	if len(a.Required)+len(b.Required) > 0 {
		merged.Required = map[string]bool{}
		maps.Copy(merged.Required, a.Required)
		maps.Copy(merged.Required, b.Required)
	}
	return merged
}

func mergeSamples(a, b map[string]Sample) map[string]Sample {
	if len(a)+len(b) == 0 {
		return nil
	}
	merged := make(map[string]Sample, max(len(a), len(b)))
	maps.Copy(merged, a)
	for name, sample := range b {
		merged[name] = newest(merged[name], sample)
	}
	return merged
}

func newest(a, b Sample) Sample {
	if a.compare(b) < 0 {
		return b
	}
	return a
}

// Prune returns the record without the properties that the Device does not have.
func (r Record) Prune(spec Spec) Record {
	keep := func(samples map[string]Sample) map[string]Sample {
		kept := map[string]Sample{}
		for name, sample := range samples {
			if spec.property(name) != nil {
				kept[name] = sample
			}
		}
		return kept
	}
	r.Reported, r.Observed, r.Required = keep(r.Reported), keep(r.Observed), maps.Clone(r.Required)
	maps.DeleteFunc(r.Required, func(name string, _ bool) bool { return spec.property(name) == nil })
	return r
}
