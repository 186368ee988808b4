package identity

import (
	"fmt"
	"time"
)

// BlockedReason returns a text for users why a node may not be connected now; "" if it may, or if nothing is known
// against it: a node without a record here may be one whose record this replica has not read yet.
func (r *Records) BlockedReason(node string, now time.Time) string {
	record := r.Lookup(node)
	if record == nil {
		return ""
	}
	why := KeyStatus(record, record.Key, r.IsRevoked(record.Key), now)
	switch {
	case why == "":
		return ""
	case !record.RevokedAt.IsZero(): // it has no key then
		return fmt.Sprintf("it was revoked at %s", record.RevokedAt.UTC().Format(time.RFC3339))
	case why == ReasonRevokedKey:
		return "its key is revoked"
	case why == ReasonExpired:
		return fmt.Sprintf("its key expired at %s and was not renewed", record.Expires.UTC().Format(time.RFC3339))
	}
	return ""
}
