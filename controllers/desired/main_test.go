package desired_test

import (
	"testing"

	"github.com/frond-edge/frond/internal/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }
