package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/frond-edge/frond/api/operations"
)

// maxEntries bounds the encoded entries of a status. An object of the API has 1.5 MiB in all, and the spec may name 2,000 nodes with 253 bytes each.
const maxEntries = 704 << 10

// maxJobReason bounds the reason of a job, which may quote its fields.
const maxJobReason = 1 << 10

// shorten lets an entry fit into its share of the status: a text that is there twice is dropped first, then the images, the actions, and the end of the
// reason, which names the image that failed.
func shorten(e *operations.ImagePrePullNodeStatus, nodes int) {
	for i := range e.ActionFlow {
		if repeats(e.Reason, e.ActionFlow[i].Reason) {
			e.ActionFlow[i].Reason = ""
		}
	}
	for i := range e.ImageStatus {
		if repeats(e.Reason, e.ImageStatus[i].Image+": "+e.ImageStatus[i].Reason) {
			e.ImageStatus[i].Reason = ""
		}
	}
	limit := maxEntries / max(nodes, 1)
	if excess(e, limit) > 0 {
		e.ImageStatus = nil
	}
	if excess(e, limit) > 0 {
		e.ActionFlow = nil
	}
	for n := excess(e, limit); n > 0 && e.Reason != ""; n = excess(e, limit) {
		e.Reason = strings.ToValidUTF8(e.Reason[:len(e.Reason)-min((n+5)/6, len(e.Reason))], "") // a byte is encoded by six at most
	}
}

// repeats reports whether a text says nothing beyond the reason of its node, whose end may have been cut off.
func repeats(reason, text string) bool {
	return reason != "" && (strings.Contains(reason, text) || strings.HasPrefix(text, reason))
}

// excess returns by how many bytes an encoded entry and its comma are more than the limit.
func excess(e *operations.ImagePrePullNodeStatus, limit int) int {
	data, err := json.Marshal(e)
	if err != nil {
		return limit // plain strings are always encoded
	}
	return len(data) + 1 - limit
}

// cutText returns a text without its end if it is longer than a reason of a job may be.
func cutText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxJobReason)], "")
}

// resumeValue returns what a status keeps of the annotation: the value, or a digest of a long one.
func resumeValue(annotation string) string {
	if len(annotation) <= 2*sha256.Size {
		return annotation
	}
	sum := sha256.Sum256([]byte(annotation))
	return hex.EncodeToString(sum[:])
}
