// Package protocol defines the messages of a tunnel: their subjects, their frames, and the codes that say why a stream was refused or broken.
//
// It owns the wire format and the check of its form. It knows no connection and no stream: whether a well-formed frame is valid for its
// stream is decided by package stream.
package protocol
