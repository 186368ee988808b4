package kubelet

import (
	"context"
	"os"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet"
)

// kubeletScope is the name under which NewMainKubelet asks for its tracer.
const kubeletScope = "k8s.io/kubernetes/pkg/kubelet"

// eventsWithoutKmsg enables events of a hollow kubelet that may not read /dev/kmsg.
//
// Upstream watches the kernel log for killed processes and refuses to start without it. The one exception is a
// *record.FakeRecorder, and then there are no events at all. So the kubelet gets a FakeRecorder for that one check, and the real
// recorder in time for everything after it: NewMainKubelet requests its tracer right after the check and before it hands the
// recorder on. If upstream ever changes the order, the node has no events and TestHollowAsUser fails; nothing else breaks.
func eventsWithoutKmsg(ctx context.Context, deps *kubelet.Dependencies, node string, sink corev1client.EventsGetter) (stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartStructuredLogging(3) // as upstream
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: sink.Events("")})
	recorder := broadcaster.NewRecorder(legacyscheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
	deps.Recorder = &record.FakeRecorder{}
	deps.TracerProvider = swappingTracer{TracerProvider: noop.NewTracerProvider(), onKubeletTracer: func() { deps.Recorder = recorder }}
	return broadcaster.Shutdown
}

type swappingTracer struct {
	trace.TracerProvider
	onKubeletTracer func()
}

func (s swappingTracer) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	if name == kubeletScope {
		s.onKubeletTracer()
	}
	return s.TracerProvider.Tracer(name, options...)
}

func canReadKmsg() bool {
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		return false
	}
	return f.Close() == nil
}
