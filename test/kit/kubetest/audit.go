package kubetest

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"
)

// auditPolicy records each request once, at its response, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	Verb      string    `json:"verb"`
	URI       string    `json:"requestURI"`
	UserAgent string    `json:"userAgent"`
	Time      time.Time `json:"requestReceivedTimestamp"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	Impersonated struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"impersonatedUser"`
	Object struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// Audit returns the requests that came after the given time and that keep accepts. A watch appears when it ends.
func (c *Cluster) Audit(t testing.TB, after time.Time, keep func(AuditEntry) bool) []AuditEntry {
	t.Helper()
	f, err := os.Open(c.path("audit.log"))
	if err != nil {
		t.Fatalf("open the audit log: %v", err)
	}
	defer func() { _ = f.Close() }()
	var found []AuditEntry
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return found // the end, possibly a partial line that is being written
		}
		var r AuditEntry
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("audit log: %v in %.200q", err, line)
		}
		if r.Time.After(after) && keep(r) {
			found = append(found, r)
		}
	}
}
