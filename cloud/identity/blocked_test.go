package identity

import (
	"testing"
	"time"
)

// TestRecords_BlockedReason: the text that a user of kubectl gets about a node that may not be connected; no text if it
// may, or if nothing is known.
func TestRecords_BlockedReason(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	r := NewRecords(nil)
	for _, record := range []*Record{
		{Node: "good", Key: "A", Expires: now.Add(time.Hour)},
		{Node: "expired", Key: "B", Expires: now.Add(-time.Hour)},
		{Node: "revoked", Revoked: []string{"C"}, RevokedAt: now.Add(-time.Minute), Expires: now.Add(time.Hour)},
		{Node: "copied", Key: "C", Expires: now.Add(time.Hour)},
		{Node: "back", Key: "D", Revoked: []string{"E"}, Expires: now.Add(time.Hour)},
		{Node: "waiting"},
	} {
		r.putRecord(record.Node, record)
	}
	for node, want := range map[string]string{
		"good": "", "back": "", "waiting": "", "unknown": "",
		"expired": "its key expired at 2030-01-02T02:04:05Z and was not renewed",
		"revoked": "it was revoked at 2030-01-02T03:03:05Z",
		"copied":  "its key is revoked",
	} {
		if got := r.BlockedReason(node, now); got != want {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
	}
}
