package cloud

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/controllers/nodes"
)

func TestLeaseBudget_HasTheSettings(t *testing.T) {
	want := nodes.LeaseBudget{PerSecond: 7, LongestPeriod: time.Minute}
	if got := leaseBudget(config.Leases{PerSecond: 7, LongestPeriod: config.Duration(time.Minute)}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
