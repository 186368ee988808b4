package deviceload_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/loadtest/deviceload"
)

func timeOf(number int64) time.Time { return time.UnixMilli(1_700_000_000_000 + number) }

func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		numbers []int64
		shift   time.Duration // of each device's time
		lost    int
		fails   bool
	}{
		"all":                    {numbers: []int64{3, 4, 5}},
		"one is missing":         {numbers: []int64{3, 5}, lost: 1, fails: true},
		"the last is missing":    {numbers: []int64{3, 4}, lost: 1, fails: true},
		"nothing":                {lost: 3, fails: true},
		"one is twice":           {numbers: []int64{3, 4, 4, 5}, fails: true},
		"in another order":       {numbers: []int64{3, 5, 4}, fails: true},
		"one that was not acked": {numbers: []int64{3, 4, 5, 6}, fails: true},
		"one of before":          {numbers: []int64{2, 3, 4, 5}, fails: true},
		"with another time":      {numbers: []int64{3, 4, 5}, shift: time.Millisecond, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			var hub []deviceload.Sample
			for _, number := range tt.numbers {
				hub = append(hub, deviceload.NewSample(number, timeOf(number).Add(tt.shift)))
			}
			lost, err := deviceload.Judge(2, 5, hub, timeOf)
			if lost != tt.lost || errors.Is(err, deviceload.ErrLost) != tt.fails {
				t.Errorf("lost %d, %v", lost, err)
			}
		})
	}
}

func TestCountWrites(t *testing.T) {
	const group = `group="devices.kubeedge.io",`
	got, err := deviceload.CountWrites(`# TYPE apiserver_request_total counter
apiserver_request_total{code="200",` + group + `resource="devicestatuses",verb="PATCH"} 7
apiserver_request_total{code="404",` + group + `resource="devicestatuses",verb="PATCH"} 2
apiserver_request_total{code="200",` + group + `resource="devicestatuses",verb="WATCH"} 5
apiserver_request_total{code="201",` + group + `resource="devices",verb="POST"} 3
apiserver_request_total{code="200",group="",resource="nodes",verb="PATCH"} 9
`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{"PATCH devicestatuses": 9, "POST devices": 3}, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}
