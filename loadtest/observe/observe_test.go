package observe_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/loadtest/observe"
	"github.com/frond-edge/frond/test/kit"
)

const text = `# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1e+06
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",verb="GET"} 3
apiserver_request_total{code="404",verb="GET"} 1
apiserver_request_total{code="200",verb="PATCH"} 7
`

func TestParse_SumsWhatAComponentUses(t *testing.T) {
	now, err := observe.Parse(strings.NewReader(text))
	kit.Must(t, err)
	before := observe.Usage{CPUSeconds: 10, Bytes: 5, Requests: map[string]float64{"GET": 4, "PATCH": 2}}
	want := observe.Usage{CPUSeconds: 2.5, Bytes: 1e6, Requests: map[string]float64{"PATCH": 5}}
	if diff := cmp.Diff(want, now.Since(before)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := observe.Parse(strings.NewReader("{]")); err == nil {
		t.Error("no metrics are metrics")
	}
}

func TestOwnMemory_IsWithinTheProcess(t *testing.T) {
	own, err := observe.Own()
	kit.Must(t, err)
	if m := observe.OwnMemory(); m.HeapObjects == 0 || m.Stacks == 0 || own.Bytes == 0 {
		t.Errorf("%+v of %.0f bytes", m, own.Bytes)
	}
}
