package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxCredentialLength bounds the text of a link's credential: a token and two names.
const MaxCredentialLength = 4096

// signedCredential is what stands in the place of the signature in a leaf's CONNECT.
type signedCredential struct {
	Credential Credential `json:"credential"`
	// Signature is that of the server's nonce, by the key of Credential.
	Signature []byte `json:"signature"`
}

// EncodeCredential returns the bytes that a leaf sends as the signature of the server's nonce (its jwt stays empty): nats-server without
// an operator drops a CONNECT's jwt before the auth callout, and passes the signature on unchanged.
func EncodeCredential(c Credential, signature []byte) ([]byte, error) {
	data, err := json.Marshal(signedCredential{Credential: c, Signature: signature})
	if err != nil {
		return nil, fmt.Errorf("show a credential: %w", err)
	}
	return data, nil
}

// DecodeCredential is the inverse of EncodeCredential, for the signature as the auth callout receives it. Its content is unproven until
// the signature is checked.
func DecodeCredential(sig string) (Credential, []byte, error) {
	if sig == "" || len(sig) > MaxCredentialLength {
		return Credential{}, nil, errors.New("no credential")
	}
	data, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		return Credential{}, nil, fmt.Errorf("credential: %w", err)
	}
	var s signedCredential
	if err := json.Unmarshal(data, &s); err != nil {
		return Credential{}, nil, fmt.Errorf("credential: %w", err)
	}
	return s.Credential, s.Signature, nil
}
