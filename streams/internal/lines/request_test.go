package lines_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/lines"
)

// The name of a run becomes a header of messages and a part of their id at targets of rules.
func TestParseRequest_Run(t *testing.T) {
	for run, accepted := range map[string]bool{"0a1b": true, "": false, "a\x01b": false, "a\nb": false, "a\u0085b": false, "a\xffb": false, strings.Repeat("x", 10_000): false} {
		request, err := lines.EncodeRequest(run, [][]byte{[]byte("records")})
		if err != nil {
			t.Fatal(err)
		}
		parsed, _, err := lines.ParseRequest(request)
		if accepted != (err == nil) || accepted && parsed != run || err != nil && !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("run %.20q: %q, %v", run, parsed, err)
		}
	}
}
