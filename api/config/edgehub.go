package config

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/frond-edge/frond/api/identity"
)

// EdgeHub configures a gateway's connection to the hub and its first enrolment. Its later state is in the folder identity below Dir.
type EdgeHub struct {
	// URLs of the hub's leaf listeners, until the cloud announces others: tls://host:port, or wss://host:port.
	URLs []string `json:"urls"`
	// TokenFile holds the token with which the gateway enrols when it has no key that the cloud knows, mode 0600.
	TokenFile string `json:"tokenFile,omitempty"`
	// CAHashes are the hashes of the hub's CA, "sha256:" and the hash of its public key; required with a token.
	CAHashes []string `json:"caHashes,omitempty"`
	// Proxy is an HTTP proxy for the link, http://host:port or https://host:port, with user and password if needed; "" uses the
	// environment: HTTPS_PROXY and NO_PROXY.
	Proxy string `json:"proxy,omitempty"`
}

func (h EdgeHub) validate() error {
	faults := []error{validateURLs(h.URLs)}
	if h.TokenFile != "" && len(h.CAHashes) == 0 {
		faults = append(faults, errors.New("hub.caHashes: required with hub.tokenFile: a token is shown to the right hub only"))
	}
	if u, err := url.Parse(h.Proxy); h.Proxy != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		faults = append(faults, errors.New("hub.proxy: not http://host:port or https://host:port")) // it may hold a password
	}
	for i, hash := range h.CAHashes {
		if !identity.ValidHash(hash) {
			faults = append(faults, fmt.Errorf("hub.caHashes[%d]: %q is not sha256: and 64 hexadecimal digits", i, hash))
		}
	}
	return errors.Join(faults...)
}
