package devicetwin_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
)

// The condition ReportsTaken has the first refusal until a message with its property is taken, over a restart as well.
func TestTwins_ReportsTaken(t *testing.T) {
	store := newStore()
	twins := open(t, store)
	spec := newSpec(t, property("temp", ""), property("speed", ""))
	twins.SetDevice(spec)
	send := func(twins *devicetwin.Twins, name, value string) {
		t.Helper()
		_, _, err := twins.Update(spec.ID, devicetwin.Update{Properties: actual(name, value)}, devicetwin.Reception{Time: time.UnixMilli(1000)})
		t.Log(name, value, err)
	}
	check := func(twins *devicetwin.Twins, id types.NamespacedName, status metav1.ConditionStatus, reason string) {
		t.Helper()
		twin, err := twins.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(twin.Conditions, devices.ConditionReportsTaken)
		if c == nil && status == "" {
			return
		}
		if c == nil || c.Status != status || c.Reason != reason {
			t.Errorf("condition %+v, want %s %s", c, status, reason)
		}
	}
	send(twins, "temp", "1")
	check(twins, spec.ID, "", "")
	send(twins, "temp", "warm")
	check(twins, spec.ID, metav1.ConditionFalse, devicetwin.ReasonWrongType)
	send(twins, "other", "1")
	check(twins, spec.ID, metav1.ConditionFalse, devicetwin.ReasonWrongType)
	send(twins, "speed", "2")
	check(twins, spec.ID, metav1.ConditionFalse, devicetwin.ReasonWrongType)
	commit(t, twins)
	again := open(t, store)
	again.SetDevice(spec)
	check(again, spec.ID, metav1.ConditionFalse, devicetwin.ReasonWrongType)
	send(again, "temp", "2")
	check(again, spec.ID, metav1.ConditionTrue, devicetwin.ReasonTaken)
	send(again, "other", "1")
	check(again, spec.ID, metav1.ConditionFalse, devicetwin.ReasonUnknownProperty)
	send(again, "temp", "3") // other will never be taken
	check(again, spec.ID, metav1.ConditionFalse, devicetwin.ReasonUnknownProperty)
}

// A refusal that does not come again is over after a while.
func TestTwins_ReportsTakenAfterAWhile(t *testing.T) {
	clock := now
	twins := devicetwin.NewTwins(newStore(), func() time.Time { return clock })
	spec := newSpec(t, property("temp", ""))
	twins.SetDevice(spec)
	status := func(name, value string) metav1.ConditionStatus {
		t.Helper()
		_, _, err := twins.Update(spec.ID, devicetwin.Update{Properties: actual(name, value)}, devicetwin.Reception{Time: clock})
		t.Log(name, value, err)
		twin, err := twins.Get(spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(twin.Conditions, devices.ConditionReportsTaken).Status
	}
	if got := status("typo", "1"); got != metav1.ConditionFalse {
		t.Error(got)
	}
	clock = clock.Add(time.Minute)
	if got := status("temp", "1"); got != metav1.ConditionFalse {
		t.Error(got)
	}
	clock = clock.Add(10 * time.Minute)
	if got := status("temp", "1"); got != metav1.ConditionTrue {
		t.Error(got)
	}
}
