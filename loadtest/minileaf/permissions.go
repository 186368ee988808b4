package minileaf

import (
	"encoding/json"
	"slices"
)

// permissions are what the hub tells a leaf that it may do, after it has asked a cloudcore who the leaf is. A leaf keeps to them: the hub closes
// a link that does not. nil lists allow all.
type permissions struct {
	// Import is what the leaf may subscribe to, Export what it may publish.
	Import *subjectList `json:"import"`
	Export *subjectList `json:"export"`
}

// subjectList are patterns of subjects.
type subjectList struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// contains reports whether a subject, or a pattern as a whole, is allowed.
func (l *subjectList) contains(subject string) bool {
	if l == nil {
		return true
	}
	covers := func(pattern string) bool { return matches(pattern, subject) }
	return (l.Allow == nil || slices.ContainsFunc(l.Allow, covers)) && !slices.ContainsFunc(l.Deny, covers)
}

// setPermissions takes the permissions of an INFO, if it has any.
func (h *hubLink) setPermissions(info string) error {
	var told permissions
	if err := json.Unmarshal([]byte(info), &told); err != nil {
		return err
	}
	if told.Import == nil && told.Export == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.permitted = told
	return nil
}

// maySubscribe and mayPublish report what the hub has allowed.
func (h *hubLink) maySubscribe(pattern string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.permitted.Import.contains(pattern)
}

func (h *hubLink) mayPublish(subject string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.permitted.Export.contains(subject)
}
