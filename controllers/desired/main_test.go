package desired_test

import (
	"testing"

	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }
