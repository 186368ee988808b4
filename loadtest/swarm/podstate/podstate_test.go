package podstate_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/swarm/podstate"
	"github.com/frond-edge/frond/test/kit"
)

const running = `{"metadata":{"name":"web","namespace":"ns","uid":"u1","generation":3},"spec":{"nodeName":"lt-1",
"initContainers":[{"name":"first","image":"i"}],"containers":[{"name":"main","image":"busybox"}]},"status":{"phase":"Pending"}}`

func TestPod_RunsAtOnce(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	p, err := podstate.Parse([]byte(running), began)
	kit.Must(t, err)
	m, err := p.Report("10.0.0.1", began)
	kit.Must(t, err)
	var pod corev1.Pod
	kit.Must(t, json.Unmarshal(m.Object, &pod))
	status := pod.Status
	switch {
	case m.Op != wire.Apply || m.UID != "u1" || pod.Name != "web" || pod.Namespace != "ns":
		t.Errorf("report %+v of %s/%s", m.Op, pod.Namespace, pod.Name)
	case status.Phase != corev1.PodRunning || status.ObservedGeneration != 3 || len(status.ContainerStatuses) != 1 || len(status.InitContainerStatuses) != 1:
		t.Errorf("status %+v", status)
	case !status.ContainerStatuses[0].Ready || status.StartTime.Nanosecond() != 0 || status.HostIP != "10.0.0.1" || status.PodIP == "":
		t.Errorf("status %+v", status)
	}
	first, err := p.Digest("10.0.0.1")
	kit.Must(t, err)
	later, err := podstate.Parse([]byte(running), p.Started)
	kit.Must(t, err)
	if again, err := later.Digest("10.0.0.1"); err != nil || again != first {
		t.Errorf("the same pod has another digest: %v, %v", again, err)
	}
}

func TestPod_DeletedPodEnds(t *testing.T) {
	const deleted = `{"metadata":{"name":"web","namespace":"ns","uid":"u1","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"lt-1"}}`
	p, err := podstate.Parse([]byte(deleted), time.Now())
	kit.Must(t, err)
	m, err := p.Report("10.0.0.1", time.Now())
	kit.Must(t, err)
	if m.Op != wire.Delete || m.UID != "u1" || m.Object != nil {
		t.Errorf("report %+v", m)
	}
	if _, err := podstate.Parse([]byte("{"), time.Now()); err == nil {
		t.Error("half an object is a pod")
	}
}
