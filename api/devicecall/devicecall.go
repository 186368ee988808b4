// Package devicecall is a call of a device's method, from frond device call over cloudcore to the device's mapper. It holds plain data only.
package devicecall

import "time"

const (
	// Path is cloudcore's: POST Path/NAMESPACE/NAME with a Request; the answer is an Answer. It requires the right to create the subresource call of
	// the Device.
	Path = "/devices/v1/call"
	// Subresource is that subresource of devices; it exists in RBAC rules only.
	Subresource = "call"
	// EdgePath is edgecore's, in the tunnel: POST with an EdgeRequest; the answer is an Answer.
	EdgePath = "/call"
	// MaxTimeout is the longest time that a call may take. Mappers on KubeEdge's framework answer within 10 s or never.
	MaxTimeout = 25 * time.Second
	// MaxRequest bounds a Request and an EdgeRequest as JSON: a value has 4 KiB at most.
	MaxRequest = 32 << 10
	// MaxBody bounds what is returned of a mapper's answer; the rest is cut off.
	MaxBody = 64 << 10
	// PortAnnotation on a mapper's pod is the port of its REST server, where it is not DefaultPort.
	PortAnnotation = "frond.io/mapper-port"
	// DefaultPort is that of KubeEdge's mapper framework.
	DefaultPort = 7777
)

// Request is what is to be called: a method writes one property.
type Request struct {
	Method string `json:"method"`
	// Property is one of the method's; "" is the only one that it has.
	Property string `json:"property,omitempty"`
	Value    string `json:"value"`
	// Milliseconds is how long the call may take.
	Milliseconds int64 `json:"milliseconds"`
}

// EdgeRequest is a Request on its way to the gateway.
type EdgeRequest struct {
	Request

	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// User is who calls, for the gateway's log.
	User string `json:"user"`
}

// Outcome says what became of a call.
type Outcome string

const (
	// Answered says that the mapper has answered, with Status and Body.
	Answered Outcome = "Answered"
	// Refused says that the Device or its model does not allow the call, or there is no Device. It was not sent.
	Refused Outcome = "Refused"
	// NotSent says that no mapper got the call.
	NotSent Outcome = "NotSent"
	// Unknown says that the call was sent, and there is no answer. It may have been executed.
	Unknown Outcome = "Unknown"
)

// Answer is the outcome of a call.
type Answer struct {
	Outcome Outcome `json:"outcome"`
	// Reason explains an outcome other than Answered.
	Reason string `json:"reason,omitempty"`
	// Node is the gateway, if it is known.
	Node string `json:"node,omitempty"`
	// Status is the mapper's HTTP status, Body what it says; Truncated: it said more than MaxBody.
	Status    int    `json:"status,omitempty"`
	Body      []byte `json:"body,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}
