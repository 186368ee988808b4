package rulefeed_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }
