package telemetry

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// ErrOvertaken exports errOvertaken.
var ErrOvertaken = errOvertaken

// Request returns a request with the given lines.
func Request(t testing.TB, run string, lines ...string) []byte {
	t.Helper()
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	var records [][]byte
	for _, l := range lines {
		records = append(records, c.encoder.EncodeAll([]byte(l+"\n"), nil))
	}
	body, err := encodeRequest(run, records)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Many returns a request with n samples.
func Many(t testing.TB, n int) []byte {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"n\":%d,\"s\":\"plant\",\"d\":\"boiler\",\"p\":\"c\"}\n", i+1)
	}
	return Request(t, "a", b.String())
}

// Bomb returns a small request that decompresses to more than a cloudcore takes.
func Bomb(t testing.TB) []byte {
	t.Helper()
	return Request(t, "a", string(bytes.Repeat([]byte(" "), 16<<20)))
}
