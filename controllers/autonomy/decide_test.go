package autonomy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func tolerations(notReady, unreachable *int64) []corev1.Toleration {
	one := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	return []corev1.Toleration{one(corev1.TaintNodeNotReady, notReady), one(corev1.TaintNodeUnreachable, unreachable)}
}

func TestDecide(t *testing.T) {
	usual, day := tolerations(ptr.To[int64](300), ptr.To[int64](300)), tolerations(ptr.To[int64](86400), ptr.To[int64](86400))
	ever := tolerations(nil, nil)
	const usualBefore = `{"node.kubernetes.io/not-ready":300,"node.kubernetes.io/unreachable":300}`
	for name, tt := range map[string]struct {
		has    []corev1.Toleration
		before string
		asks   string
		want   []corev1.Toleration // nil: no change
		after  string
	}{
		"nobody asks":                 {has: usual},
		"for ever":                    {has: usual, asks: "forever", want: ever, after: usualBefore},
		"a day":                       {has: usual, asks: "24h", want: day, after: usualBefore},
		"done already":                {has: ever, before: usualBefore, asks: "forever"},
		"from for ever to a day":      {has: ever, before: usualBefore, asks: "24h", want: day, after: usualBefore},
		"the pod's own is longer":     {has: ever, asks: "24h"},
		"the annotation went":         {has: ever, before: usualBefore, want: usual},
		"it had none":                 {asks: "forever", want: ever, after: usualBefore},
		"not understood":              {has: usual, asks: "soon"},
		"somebody spoilt what it had": {has: ever, before: "?", want: ever},
		"everything is tolerated":     {has: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, asks: "forever"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}, Spec: corev1.PodSpec{Tolerations: tt.has}}
			if tt.before != "" {
				pod.Annotations[beforeAnnotation] = tt.before
			}
			annotations := map[string]string{}
			if tt.asks != "" {
				annotations[Annotation] = tt.asks
			}
			want, err := parse(annotations)
			if (err != nil) != (tt.asks == "soon") {
				t.Errorf("parse: %v", err)
			}
			got := decide(pod, want)
			if tt.want == nil {
				if got != nil {
					t.Fatalf("decide: %+v, want no change", got)
				}
				return
			}
			if got == nil {
				t.Fatal("decide: no change")
			}
			if diff := cmp.Diff(tt.want, got.tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
			if after := ptr.Deref(got.before, ""); after != tt.after {
				t.Errorf("before is %q, want %q", after, tt.after)
			}
			pod.Spec.Tolerations = got.tolerations
			if got.before == nil {
				delete(pod.Annotations, beforeAnnotation)
			} else {
				pod.Annotations[beforeAnnotation] = *got.before
			}
			if again := decide(pod, want); again != nil {
				t.Errorf("decided twice: %+v", again)
			}
		})
	}
}
