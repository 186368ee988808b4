package nodehealth

import (
	"testing"

	"github.com/frond-edge/frond/test/kit/kubetest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }
