package podstatus_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/test/kit"
)

// What a report cannot change is left out, and everything else counts.
func TestDigest_CoversWhatReportsChange(t *testing.T) {
	status := func(change func(*corev1.PodStatus)) string {
		s := corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true}},
		}
		change(&s)
		digest, err := podstatus.Digest(s)
		kit.Must(t, err)
		return digest
	}
	base := status(func(*corev1.PodStatus) {})
	for name, c := range map[string]struct {
		change func(*corev1.PodStatus)
		same   bool
	}{
		"nominated node":      {func(s *corev1.PodStatus) { s.NominatedNodeName = "n" }, true},
		"claims":              {func(s *corev1.PodStatus) { s.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}} }, true},
		"order of conditions": {func(s *corev1.PodStatus) { s.Conditions[0], s.Conditions[1] = s.Conditions[1], s.Conditions[0] }, true},
		"empty list":          {func(s *corev1.PodStatus) { s.PodIPs = []corev1.PodIP{} }, true},
		"not ready":           {func(s *corev1.PodStatus) { s.Conditions[0].Status = corev1.ConditionFalse }, false},
		"foreign condition":   {func(s *corev1.PodStatus) { s.Conditions = append(s.Conditions, corev1.PodCondition{Type: "x"}) }, false},
		"phase":               {func(s *corev1.PodStatus) { s.Phase = corev1.PodFailed }, false},
		"container":           {func(s *corev1.PodStatus) { s.ContainerStatuses[0].RestartCount = 1 }, false},
	} {
		if got := status(c.change) == base; got != c.same {
			t.Errorf("%s: same %v, want %v", name, got, c.same)
		}
	}
}

// Computing a digest sorts a copy: the caller's status may be shared with a cache.
func TestDigest_LeavesStatusAlone(t *testing.T) {
	s := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "b"}, {Type: "a"}}}
	before, err := json.Marshal(s)
	kit.Must(t, err)
	_, err = podstatus.Digest(s)
	kit.Must(t, err)
	if after, err := json.Marshal(s); err != nil || string(after) != string(before) {
		t.Errorf("became %s, %v", after, err)
	}
}
