package mqtt

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of what apps send. KubeEdge takes 512 characters of ASCII a value.
const (
	// MaxPayload is the longest payload: a device's twin has at most as much.
	MaxPayload = 256 << 10
	// MaxValue is the longest value of a property, in bytes.
	MaxValue = 4 << 10
	// MaxKey is the longest name of a property, as in KubeEdge.
	MaxKey = 128
	// maxEventID bounds what is echoed: three UUIDs and some.
	maxEventID = 128
)

// The codes of a result that is an error, as KubeEdge has them. Its 409 is one that it never sends.
const (
	CodeBadRequest = 400 // the payload, or a value in it
	CodeNotFound   = 404 // there is no such device
	CodeTooMany    = 429 // more messages than the device may send; KubeEdge has no limit for MQTT and no such code
	CodeInternal   = 500 // the twin could not be stored; the app may send the same again
)

// Envelope is in each message.
type Envelope struct {
	EventID   string `json:"event_id"`
	Timestamp int64  `json:"timestamp"`
}

// Value is one side of a property. Value is nil where a message has only metadata.
type Value struct {
	Value    *string        `json:"value,omitempty"`
	Metadata *ValueMetadata `json:"metadata,omitempty"`
}

// ValueMetadata has the time of a value, 0 if it is not known.
type ValueMetadata struct {
	Timestamp int64 `json:"timestamp,omitempty"`
}

// TypeMetadata has the type of a property.
type TypeMetadata struct {
	Type string `json:"type,omitempty"`
}

// Property is one property of a twin.
type Property struct {
	Expected *Value        `json:"expected,omitempty"`
	Actual   *Value        `json:"actual,omitempty"`
	Optional *bool         `json:"optional,omitempty"`
	Metadata *TypeMetadata `json:"metadata,omitempty"`
}

// Twin is the payload of TwinUpdate, of its result without an error, and of TwinGetResult. A nil property is deleted.
type Twin struct {
	Envelope
	Twin map[string]*Property `json:"twin"`
}

// Failure is the payload of a result that is an error.
type Failure struct {
	Envelope
	Code   int    `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Delta is the payload of TwinUpdateDelta: Twin has all properties with an expected value, Delta those whose actual value differs from it.
type Delta struct {
	Envelope
	Twin  map[string]*Property `json:"twin"`
	Delta map[string]string    `json:"delta"`
}

// Document is the payload of TwinUpdateDocument.
type Document struct {
	Envelope
	Twin map[string]*DocumentProperty `json:"twin"`
}

// DocumentProperty has a property before and after an update. Nil: there was, or is, none.
type DocumentProperty struct {
	Last    *Property `json:"last"`
	Current *Property `json:"current"`
}

// FormError says why a payload is refused: it is not what KubeEdge defines, or too large.
type FormError struct {
	Reason string
	// Err is the error of the JSON decoder, or nil.
	Err error
}

func (e *FormError) Error() string {
	if e.Err != nil {
		return e.Reason + ": " + e.Err.Error()
	}
	return e.Reason
}

func (e *FormError) Unwrap() error { return e.Err }

func formError(format string, args ...any) error {
	return &FormError{Reason: fmt.Sprintf(format, args...)}
}

// DecodeTwinUpdate reads the payload of TwinUpdate. The error is a *FormError; then the envelope has the event_id if it could be read.
func DecodeTwinUpdate(payload []byte) (Twin, error) {
	var t Twin
	if err := decode(payload, &t); err != nil {
		return Twin{Envelope: readEnvelope(payload)}, err
	}
	refused := Twin{Envelope: t.Envelope}
	if err := checkEnvelope(t.Envelope); err != nil {
		return Twin{}, err
	}
	if len(t.Twin) == 0 {
		return refused, formError("the key twin is missing or has no properties")
	}
	for name, p := range t.Twin {
		if err := checkProperty(name, p); err != nil {
			return refused, err
		}
	}
	return t, nil
}

// DecodeTwinGet reads the payload of TwinGet, as DecodeTwinUpdate does.
func DecodeTwinGet(payload []byte) (Envelope, error) { return decodeEnvelope(payload) }

// DecodeMembershipGet reads the payload of MembershipGet, as DecodeTwinUpdate does.
func DecodeMembershipGet(payload []byte) (Envelope, error) { return decodeEnvelope(payload) }

func decodeEnvelope(payload []byte) (Envelope, error) {
	var e Envelope
	if err := decode(payload, &e); err != nil {
		return readEnvelope(payload), err
	}
	if err := checkEnvelope(e); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

// Payload is a message that can be encoded.
type Payload interface {
	Twin | Failure | Delta | Document | State | StateResult | Membership | MembershipUpdate
}

// Encode returns the payload of a message. It cannot fail: no Payload has anything that JSON lacks.
func Encode[M Payload](message M) []byte {
	b, err := json.Marshal(message)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", message, err))
	}
	return b
}

// decode reads JSON as KubeEdge does: unknown fields are ignored.
func decode(payload []byte, into any) error {
	if len(payload) > MaxPayload {
		return formError("the payload has %d bytes, %d are allowed", len(payload), MaxPayload)
	}
	if !utf8.Valid(payload) {
		return formError("the payload is not UTF-8")
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return &FormError{Reason: "the payload is not the JSON of this topic", Err: err}
	}
	return nil
}

// readEnvelope reads what it can of the envelope of a payload that cannot be decoded.
func readEnvelope(payload []byte) Envelope {
	var e struct {
		EventID any `json:"event_id"`
	}
	if len(payload) > MaxPayload || !utf8.Valid(payload) || json.Unmarshal(payload, &e) != nil {
		return Envelope{}
	}
	id, _ := e.EventID.(string)
	if checkEnvelope(Envelope{EventID: id}) != nil {
		return Envelope{}
	}
	return Envelope{EventID: id}
}

func checkEnvelope(e Envelope) error {
	if len(e.EventID) > maxEventID {
		return formError("event_id has %d bytes, %d are allowed", len(e.EventID), maxEventID)
	}
	return checkText("event_id", e.EventID)
}

func checkProperty(name string, p *Property) error {
	if name == "" || len(name) > MaxKey {
		return formError("the name of a property has %d bytes, 1 to %d are allowed", len(name), MaxKey)
	}
	if err := checkText("the name of a property", name); err != nil {
		return err
	}
	if p == nil {
		return nil
	}
	if p.Metadata != nil && !IsType(p.Metadata.Type) {
		return formError("property %s: the type %q is none of string, int, integer, float, double, boolean, bytes, deleted", name, clip(p.Metadata.Type))
	}
	for _, v := range []*Value{p.Expected, p.Actual} {
		if v == nil || v.Value == nil {
			continue
		}
		if len(*v.Value) > MaxValue {
			return formError("property %s: the value has %d bytes, %d are allowed", name, len(*v.Value), MaxValue)
		}
		if err := checkText("property "+name+": the value", *v.Value); err != nil {
			return err
		}
	}
	return nil
}

// TypeDeleted is the type by which a property is deleted; a null in place of the property does the same.
const TypeDeleted = "deleted"

// IsType reports whether a word is a type of KubeEdge's, or one that its DeviceModels have and its twin does not. Empty is the type string.
func IsType(word string) bool {
	switch word {
	case "", "string", "int", "integer", "float", "double", "boolean", "bytes", TypeDeleted:
		return true
	default:
		return false
	}
}

// checkText refuses control characters.
func checkText(what, text string) error {
	if strings.IndexFunc(text, unicode.IsControl) >= 0 {
		return formError("%s has a control character", what)
	}
	return nil
}
