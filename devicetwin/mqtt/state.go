package mqtt

import "strings"

// State is the payload of StateUpdate.
type State struct {
	Envelope
	State string `json:"state,omitempty"`
}

// StateResult is the payload of StateUpdateResult. Its event_id is a new one.
type StateResult struct {
	Envelope
	Device StateDevice `json:"device"`
}

// StateDevice is a device's state.
type StateDevice struct {
	Name  string `json:"name,omitempty"`
	State string `json:"state,omitempty"`
	// LastOnlineTime is a time of RFC 3339 in UTC, empty while the device is not online.
	LastOnlineTime string `json:"lastOnlineTime,omitempty"`
}

// Membership is the payload of MembershipGetResult.
type Membership struct {
	Envelope
	Devices []Member `json:"devices"`
}

// MembershipUpdate is the payload of MembershipUpdated. Nil lists are null in JSON, as in KubeEdge.
type MembershipUpdate struct {
	Envelope
	Added   []Member `json:"added_devices"`
	Removed []Member `json:"removed_devices"`
}

// Member is a device of a node. ID is <namespace>/<name>.
type Member struct {
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	State       string `json:"state,omitempty"`
	LastOnline  string `json:"last_online,omitempty"`
}

// DecodeState reads the payload of StateUpdate. The error is a *FormError, also for a word that is no state.
func DecodeState(payload []byte) (State, error) {
	var s State
	if err := decode(payload, &s); err != nil {
		return State{Envelope: readEnvelope(payload)}, err
	}
	if err := checkEnvelope(s.Envelope); err != nil {
		return State{}, err
	}
	if !IsState(s.State) {
		return State{Envelope: s.Envelope}, formError("the state %q is none of online, offline, ok, unknown, unhealthy, disconnected", clip(s.State))
	}
	return s, nil
}

// IsState reports whether a word is a state of a device, in capitals or not. Old mappers send DISCONNECTED, which KubeEdge ignores.
func IsState(word string) bool {
	switch strings.ToLower(word) {
	case "online", "offline", "ok", "unknown", "unhealthy", "disconnected":
		return true
	default:
		return false
	}
}

// IsOnline reports whether a state says that the device was there.
func IsOnline(word string) bool {
	return strings.EqualFold(word, "online") || strings.EqualFold(word, "ok")
}
