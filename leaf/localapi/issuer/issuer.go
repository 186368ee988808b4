// Package issuer serves the documents with which a program on the gateway verifies tokens of service accounts itself.
package issuer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// The two documents with which a program verifies tokens of service accounts itself (OpenID Connect Discovery 1.0 §4).
// kube-apiserver serves them at the same paths. Subjects bound to the role system:service-account-issuer-discovery may read them.
const (
	issuerPath = "/.well-known/openid-configuration"
	jwksPath   = "/openid/v1/jwks"
)

// issuerDocument is the part of the discovery document that kube-apiserver serves.
type issuerDocument struct {
	Issuer        string   `json:"issuer"`
	JWKSURI       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	SigningAlgs   []string `json:"id_token_signing_alg_values_supported"`
}

// Serve answers a request for one of the two documents from the cluster's keys in the store, also without a link, and
// reports whether it was one. The document names the address of the request as the source of the keys: the address in the
// apiserver's own document may not be reachable from the gateway.
func Serve(st *store.Store, w http.ResponseWriter, req *http.Request, path string) bool {
	if path != issuerPath && path != jwksPath {
		return false
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		respond.Error(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{}, strings.ToLower(req.Method)))
		return true
	}
	keys, err := loadTokenKeys(st)
	if err != nil {
		respond.Error(w, req, respond.RetryLater(err.Error()))
		return true
	}
	if path == jwksPath {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		_, _ = w.Write(keys.JWKS) // the client has gone away
		return true
	}
	document, err := json.Marshal(issuerDocument{
		Issuer: keys.Issuer, JWKSURI: "https://" + req.Host + jwksPath,
		ResponseTypes: []string{"id_token"}, SubjectTypes: []string{"public"}, SigningAlgs: signingAlgs(keys.JWKS),
	})
	if err != nil {
		respond.Error(w, req, apierrors.NewInternalError(err))
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document)
	return true
}

// loadTokenKeys reads the cluster's keys from the store.
func loadTokenKeys(st *store.Store) (keys wire.TokenKeys, err error) {
	entry, err := st.Get(wire.TokenKeysKey())
	if err != nil {
		return keys, errors.New("the cluster's keys have not been delivered to this gateway")
	}
	if err := json.Unmarshal(entry.Object, &keys); err != nil {
		return keys, fmt.Errorf("the cluster's keys cannot be read: %w", err)
	}
	return keys, nil
}

// signingAlgs returns the algorithms in a key set, each once, in its order.
func signingAlgs(jwks json.RawMessage) []string {
	var set struct {
		Keys []struct {
			Alg string `json:"alg"`
		} `json:"keys"`
	}
	algs, seen := []string{}, map[string]bool{}
	if err := json.Unmarshal(jwks, &set); err != nil {
		return algs // the client that fetches the keys gets the error
	}
	for _, key := range set.Keys {
		if key.Alg != "" && !seen[key.Alg] {
			seen[key.Alg] = true
			algs = append(algs, key.Alg)
		}
	}
	return algs
}
