package lines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/frond-edge/frond/api/wire"
)

// The headers of a sample in TELEMETRY-0 and of a message in MESSAGES-0; the payload is what the device or the app gave. Times are RFC 3339 in UTC with milliseconds.
const (
	// HeaderNumber is the sample's number at its node, consecutive over restarts. A number that is missing was dropped.
	HeaderNumber = "Frond-Number"
	// HeaderPrevious is the number of the sample of the same device before it; absent from the first after a start of edgecore.
	HeaderPrevious = "Frond-Previous"
	// HeaderRun identifies the store that gave the numbers: they begin anew with another one.
	HeaderRun         = "Frond-Run"
	HeaderDeviceTime  = "Frond-Device-Time"
	HeaderGatewayTime = "Frond-Gateway-Time"
	// HeaderClock is "synced", or "unsynced" where the gateway's clock was not synchronized.
	HeaderClock = "Frond-Clock"

	// HeaderNode is the node of a message in MESSAGES-0. The next are the MQTT topic as the app wrote it, the broker that took the message, and the
	// user that published it, where the broker knows.
	HeaderNode   = "Frond-Node"
	HeaderTopic  = "Frond-Topic"
	HeaderBroker = "Frond-Broker"
	HeaderUser   = "Frond-User"
)

// maxPreamble bounds the first line of a request.
const maxPreamble = 1 << 10

// preamble is the first line of a request; compressed lines of samples follow.
type preamble struct {
	// Run identifies the store that numbered the samples.
	Run string `json:"run"`
}

// Reply is the answer to a request.
type Reply struct {
	// Number is the last number up to which the hub has the node's samples, or has refused them.
	Number uint64 `json:"number,omitempty"`
	// Refused counts the samples of devices that Kubernetes does not assign to the node. They are dead-lettered.
	Refused int `json:"refused,omitempty"`
	// Error says why nothing was stored. Permanent says that the same request will never be accepted.
	Error     string `json:"error,omitempty"`
	Permanent bool   `json:"permanent,omitempty"`
}

// EncodeRequest returns a request with compressed records.
func EncodeRequest(run string, records [][]byte) ([]byte, error) {
	first, err := json.Marshal(preamble{Run: run})
	if err != nil {
		return nil, fmt.Errorf("telemetry: encode request: %w", err)
	}
	return bytes.Join(append([][]byte{append(first, '\n')}, records...), nil), nil
}

// ParseRequest returns the parts of a request. Its errors wrap wire.ErrPermanent.
func ParseRequest(request []byte) (run string, records []byte, err error) {
	first, records, ok := bytes.Cut(request, []byte("\n"))
	if !ok || len(first) > maxPreamble {
		return "", nil, fmt.Errorf("%w: no first line of at most %d bytes", wire.ErrPermanent, maxPreamble)
	}
	var p preamble
	if err := json.Unmarshal(first, &p); err != nil {
		return "", nil, fmt.Errorf("%w: first line: %w", wire.ErrPermanent, err)
	}
	if strings.ContainsFunc(p.Run, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }) {
		return "", nil, fmt.Errorf("%w: name of the run %.80q has a control character", wire.ErrPermanent, p.Run)
	}
	if p.Run == "" || len(p.Run) > maxName {
		return "", nil, fmt.Errorf("%w: name of the run of %d bytes, want 1 to %d", wire.ErrPermanent, len(p.Run), maxName)
	}
	return p.Run, records, nil
}
