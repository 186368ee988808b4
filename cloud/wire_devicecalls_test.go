package cloud

import (
	"errors"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

// TestTunnelDialer_RefusesTheDevicePort: whoever may connect through cloudcore's gateway may not pass by the rights on devices.
func TestTunnelDialer_RefusesTheDevicePort(t *testing.T) {
	if _, err := (tunnelDialer{}).Dial(t.Context(), "gw-1", config.EdgeDevicePort); !errors.Is(err, errDevicePort) {
		t.Errorf("%v, want %v", err, errDevicePort)
	}
}
