package cloud

import (
	"errors"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

// TestTunnelDialer_RefusesReservedPorts: whoever may connect through cloudcore's gateway may not pass by the rights on devices and rules.
func TestTunnelDialer_RefusesReservedPorts(t *testing.T) {
	for _, port := range []uint16{config.EdgeDevicePort, config.EdgeServicePort} {
		if _, err := (tunnelDialer{}).Dial(t.Context(), "gw-1", port); !errors.Is(err, errReservedPort) {
			t.Errorf("%d: %v, want %v", port, err, errReservedPort)
		}
	}
}
