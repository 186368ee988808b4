package desired_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

func TestPodDeletionReason(t *testing.T) {
	now, none, some := metav1.Now(), int64(0), int64(30)
	for name, tt := range map[string]struct {
		pod  corev1.Pod
		want wire.DeletionReason
	}{
		"running":     {corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &some}}, ""},
		"terminating": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, wire.DeletionTerminating},
		"forced":      {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: &none}}, ""},
		"with grace":  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: &some}}, wire.DeletionTerminating},
		"succeeded":   {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, wire.DeletionPodEnded},
		"failed":      {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, wire.DeletionPodEnded},
		"no grace":    {corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none}}, wire.DeletionWithoutGrace},
		"static":      {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.mirror": "x"}}}, wire.DeletionWithoutGrace},
	} {
		if got := desired.PodDeletionReason(&tt.pod); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestGuard_HoldReason(t *testing.T) {
	for name, tt := range map[string]struct {
		share                          float64
		missing, foreign, recent, live int
		want                           wire.HoldReason
	}{
		"nothing":                 {share: 0.5, live: 10},
		"all":                     {share: 0.5, missing: 10, live: 10, want: wire.HoldMassDelete},
		"half":                    {share: 0.5, missing: 5, live: 10},
		"more than half":          {share: 0.5, missing: 6, live: 10, want: wire.HoldMassDelete},
		"all of few":              {share: 0.5, missing: 4, live: 4},
		"five of five":            {share: 0.5, missing: 5, live: 5, want: wire.HoldMassDelete},
		"with those before":       {share: 0.5, missing: 1, recent: 4, live: 3, want: wire.HoldMassDelete},
		"those before were live":  {share: 0.5, missing: 1, recent: 4, live: 8},
		"only those before":       {share: 0.5, recent: 6, live: 1},
		"off":                     {missing: 10, live: 10},
		"all are never above all": {share: 1, missing: 10, live: 10},
		"one after a restore":     {share: 0.5, foreign: 1, live: 100, want: wire.HoldRestored},
		"restore with guard off":  {foreign: 1, live: 100, want: wire.HoldRestored},
	} {
		if got := desired.GuardReason(desired.Guard{Share: tt.share, Minimum: 5}, tt.missing, tt.foreign, tt.recent, tt.live); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
