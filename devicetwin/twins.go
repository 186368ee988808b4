package devicetwin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNoDevice reports that no Device of this name belongs to the gateway.
var ErrNoDevice = errors.New("there is no such device on this node")

// MaxRecord is the largest record of a device, in bytes of JSON: as large as the largest message about it may be.
const MaxRecord = 256 << 10

// RecordStore keeps the records of a gateway.
type RecordStore interface {
	// SaveTwins stores records and deletes those that are nil. When it returns nil they are on disk, all of them; with an error each may be.
	SaveTwins(ctx context.Context, records map[types.NamespacedName][]byte) error
	// LoadTwins returns all stored records.
	LoadTwins(ctx context.Context) (map[types.NamespacedName][]byte, error)
}

// Twin is a device with all that is known of it.
type Twin struct {
	Spec   Spec
	Record Record
	// Conditions are those of the Record.
	Conditions []metav1.Condition
}

// stored is the JSON of a twin in the store. The Device itself is in the store already.
type stored struct {
	Record     Record             `json:"record"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Twins are the devices of a gateway. It belongs to one goroutine. A change becomes visible at once and durable with Commit; what is told to others
// before that could be lost in a crash.
type Twins struct {
	store RecordStore
	now   func() time.Time
	twins map[types.NamespacedName]Twin
	// orphans are records whose Device has not been seen since the start.
	orphans map[types.NamespacedName]stored
	// before has, for each device changed since the last Commit, what is in the store.
	before map[types.NamespacedName]*Twin
}

// NewTwins returns a gateway without devices. It reads nothing. now is the gateway's clock.
func NewTwins(store RecordStore, now func() time.Time) *Twins {
	return &Twins{
		store: store, now: now, twins: map[types.NamespacedName]Twin{}, orphans: map[types.NamespacedName]stored{},
		before: map[types.NamespacedName]*Twin{},
	}
}

// Load reads the records of the store, once, before all else. Records that cannot be read are returned as errors and left out: their devices start
// with what they report next.
func (t *Twins) Load(ctx context.Context) error {
	records, err := t.store.LoadTwins(ctx)
	if err != nil {
		return fmt.Errorf("load the records of devices: %w", err)
	}
	var damaged []error
	for id, raw := range records {
		var s stored
		if err := json.Unmarshal(raw, &s); err != nil {
			damaged = append(damaged, fmt.Errorf("%w of %s: %w", ErrDamaged, id, err))
			continue
		}
		t.orphans[id] = s
	}
	return errors.Join(damaged...)
}

// ErrDamaged reports a record that cannot be read.
var ErrDamaged = errors.New("damaged record")

// IDs returns the devices by name.
func (t *Twins) IDs() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(t.twins), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}

// Get returns a device. The error is ErrNoDevice.
func (t *Twins) Get(id types.NamespacedName) (Twin, error) {
	twin, ok := t.twins[id]
	if !ok {
		return Twin{}, fmt.Errorf("%w: %s", ErrNoDevice, id)
	}
	return twin, nil
}

// SetDevice takes a Device that came or changed. created: it was not there before. A Device with another UID is another device, without the values of
// the one before.
func (t *Twins) SetDevice(spec Spec) (twin Twin, created bool) {
	if s, ok := t.orphans[spec.ID]; ok {
		delete(t.orphans, spec.ID)
		t.twins[spec.ID] = Twin{Spec: spec, Record: s.Record, Conditions: s.Conditions}
	}
	old, known := t.twins[spec.ID]
	if old.Record.UID != spec.UID {
		old, known = Twin{}, false
	}
	if spec.Generation < old.Record.Generation { // an older object, which the store does not give
		return old, false
	}
	record := Merge(old.Record, spec.Fragment()).Prune(spec)
	return t.set(spec, record, old.Conditions), !known
}

// RemoveDevice forgets a device and, with the next Commit, its record. It reports whether it was there.
func (t *Twins) RemoveDevice(id types.NamespacedName) bool {
	_, known := t.twins[id]
	t.remember(id)
	delete(t.twins, id)
	delete(t.orphans, id)
	return known
}

// RemoveOrphans deletes the records whose Devices have not come, after all Devices of the store have.
func (t *Twins) RemoveOrphans() {
	for id := range t.orphans {
		t.RemoveDevice(id)
	}
}

// Update takes a message of an app or mapper. The error is ErrNoDevice or a *Refusal; then at most the condition ReportsTaken has changed.
func (t *Twins) Update(id types.NamespacedName, u Update, received Reception) (Twin, Admission, error) {
	twin, err := t.Get(id)
	if err != nil {
		return Twin{}, Admission{}, err
	}
	a, err := twin.Spec.Admit(twin.Record, u, received)
	if err != nil {
		t.setReportsTaken(twin, refused(twin.Conditions, err))
		return twin, Admission{}, err
	}
	record := Merge(twin.Record, a.Fragment)
	if raw, err := json.Marshal(record); err != nil || len(raw) > MaxRecord {
		refusal := &Refusal{Reason: ReasonTooLarge, Message: fmt.Sprintf("with this message all values of the device have %d bytes, %d are allowed", len(raw), MaxRecord)}
		t.setReportsTaken(twin, refused(twin.Conditions, refusal))
		return twin, Admission{}, refusal
	}
	t.setReportsTaken(twin, taken(twin.Conditions, u, t.now()))
	return t.set(twin.Spec, record, t.twins[id].Conditions), a, nil
}

// UpdateState takes a state. The error is ErrNoDevice.
func (t *Twins) UpdateState(id types.NamespacedName, word string, online bool, sent int64, received Reception) (Twin, Admission, error) {
	twin, err := t.Get(id)
	if err != nil {
		return Twin{}, Admission{}, err
	}
	a := twin.Spec.AdmitState(twin.Record, word, online, sent, received)
	return t.set(twin.Spec, Merge(twin.Record, a.Fragment), twin.Conditions), a, nil
}

// Condition is a condition of a device that somebody else than the twin knows.
type Condition struct {
	Type, Reason, Message string
	Status                metav1.ConditionStatus
	// Generation is of the Device that it is about.
	Generation int64
}

// SetCondition sets a condition of a device. It reports whether something has changed.
func (t *Twins) SetCondition(id types.NamespacedName, c Condition) bool {
	twin, ok := t.twins[id]
	if !ok {
		return false
	}
	conditions := slices.Clone(twin.Conditions)
	if !meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, ObservedGeneration: c.Generation,
		LastTransitionTime: metav1.NewTime(t.now().UTC().Truncate(time.Second)),
	}) {
		return false
	}
	t.set(twin.Spec, twin.Record, conditions)
	return true
}

// setReportsTaken sets the condition ReportsTaken, unless c is nil.
func (t *Twins) setReportsTaken(twin Twin, c *Condition) {
	if c != nil {
		c.Generation = twin.Spec.Generation
		t.SetCondition(twin.Spec.ID, *c)
	}
}

func (t *Twins) set(spec Spec, record Record, conditions []metav1.Condition) Twin {
	t.remember(spec.ID)
	twin := Twin{Spec: spec, Record: record, Conditions: Conditions(spec, record, conditions, t.now())}
	t.twins[spec.ID] = twin
	return twin
}

// remember keeps what the store has of a device, for a Commit that fails.
func (t *Twins) remember(id types.NamespacedName) {
	if _, ok := t.before[id]; ok {
		return
	}
	t.before[id] = nil
	if twin, ok := t.twins[id]; ok {
		t.before[id] = &twin
	}
}

// Commit stores all changes since the last one, together. After an error they are undone, except for the Devices themselves: the next Commit stores
// what they say. It returns what was stored: each changed device, and as removed those that are gone.
func (t *Twins) Commit(ctx context.Context) (changed []Twin, removed []types.NamespacedName, err error) {
	if len(t.before) == 0 {
		return nil, nil, nil
	}
	records := make(map[types.NamespacedName][]byte, len(t.before))
	for id := range t.before {
		twin, ok := t.twins[id]
		if !ok {
			records[id], removed = nil, append(removed, id)
			continue
		}
		raw, err := json.Marshal(stored{Record: twin.Record, Conditions: twin.Conditions})
		if err != nil {
			return nil, nil, fmt.Errorf("encode the record of %s: %w", id, err)
		}
		records[id], changed = raw, append(changed, twin)
	}
	if err := t.store.SaveTwins(ctx, records); err != nil {
		t.undo()
		return nil, nil, fmt.Errorf("store the records of %d devices: %w", len(records), err)
	}
	clear(t.before)
	return changed, removed, nil
}

// undo restores the values of the last Commit. What Kubernetes says stays; so does the wish to store it.
func (t *Twins) undo() {
	for id, before := range t.before {
		twin, ok := t.twins[id]
		if !ok {
			continue // removed: the next Commit deletes its record
		}
		record := twin.Spec.Fragment()
		var conditions []metav1.Condition
		if before != nil && before.Record.UID == twin.Record.UID {
			record, conditions = Merge(before.Record, record).Prune(twin.Spec), before.Conditions
		}
		t.twins[id] = Twin{Spec: twin.Spec, Record: record, Conditions: Conditions(twin.Spec, record, conditions, t.now())}
	}
}
