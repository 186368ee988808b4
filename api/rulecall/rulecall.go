// Package rulecall is what cloudcore and a gateway agree on for calls of services by KubeEdge's Rules: one HTTP request through a tunnel.
package rulecall

import "time"

const (
	// HeaderPort names the service's port in a request to the gateway.
	HeaderPort = "Frond-Service-Port"
	// HeaderNotSent in the gateway's answer says why no service got the call. The gateway removes it from the answers of services.
	HeaderNotSent = "Frond-Not-Sent"
	// MaxBody bounds the body of a call, as in KubeEdge.
	MaxBody = 12 << 20
	// Timeout bounds a call, as in KubeEdge.
	Timeout = 60 * time.Second
)
