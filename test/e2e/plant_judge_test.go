package e2e_test

import (
	"testing"

	pump "github.com/frond-edge/frond/internal/devcluster/devices/sensor"
)

// TestPlantJudge: the judge of TestDevices_Plant finds each kind of loss, without a cluster.
func TestPlantJudge(t *testing.T) {
	pumps := map[string]pump.Status{"pump": {Answered: 3}}
	answered := map[string][]int64{"motor": {10, 30}}
	for name, tt := range map[string]struct {
		pump, motor []int64
		problems    int
	}{
		"all":                         {pump: []int64{1, 2, 3}, motor: []int64{10, 20, 30}}, // 20 was not answered, and was taken
		"a pump's sample is missing":  {pump: []int64{1, 3}, motor: []int64{10, 30}, problems: 1},
		"a pump's sample is twice":    {pump: []int64{1, 2, 2, 3}, motor: []int64{10, 30}, problems: 1},
		"a motor's sample is missing": {pump: []int64{1, 2, 3}, motor: []int64{10}, problems: 1},
		"a motor's sample is twice":   {pump: []int64{1, 2, 3}, motor: []int64{10, 10, 30}, problems: 1},
		"a motor's are in disorder":   {pump: []int64{1, 2, 3}, motor: []int64{30, 10}, problems: 1},
		"nothing":                     {problems: 3},
	} {
		if problems := judgePlant(pumps, answered, map[string][]int64{"pump": tt.pump, "motor": tt.motor}); len(problems) != tt.problems {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
