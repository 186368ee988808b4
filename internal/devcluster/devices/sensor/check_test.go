package sensor_test

import (
	"testing"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
)

func TestStatus_Check(t *testing.T) {
	for name, tt := range map[string]struct {
		status  sensor.Status
		numbers []int64
		fails   bool
	}{
		"nothing":                      {},
		"all":                          {status: sensor.Status{Answered: 3}, numbers: []int64{1, 2, 3}},
		"one on its way":               {status: sensor.Status{Answered: 2}, numbers: []int64{1, 2, 3}},
		"one that was sent again":      {status: sensor.Status{Answered: 3, Repeated: 1}, numbers: []int64{1, 2, 2, 3}},
		"the last is missing":          {status: sensor.Status{Answered: 3}, numbers: []int64{1, 2}, fails: true},
		"the first is missing":         {status: sensor.Status{Answered: 3}, numbers: []int64{2, 3}, fails: true},
		"one in the middle is missing": {status: sensor.Status{Answered: 3}, numbers: []int64{1, 3}, fails: true},
		"in another order":             {status: sensor.Status{Answered: 3}, numbers: []int64{1, 3, 2}, fails: true},
		"one twice":                    {status: sensor.Status{Answered: 3}, numbers: []int64{1, 2, 2, 3}, fails: true},
		"one that was not sent":        {status: sensor.Status{Answered: 1}, numbers: []int64{1, 2, 3}, fails: true},
		"one before the first":         {status: sensor.Status{Answered: 1, Repeated: 1}, numbers: []int64{0, 1}, fails: true},
		"all are missing":              {status: sensor.Status{Answered: 1}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.status.Check(tt.numbers); (err != nil) != tt.fails {
				t.Errorf("got %v", err)
			}
		})
	}
}
