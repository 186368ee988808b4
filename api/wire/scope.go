package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Scope is what a component at the edge lists or watches: every object of a resource, in one namespace or in all.
type Scope struct {
	Group    string `json:"group,omitempty"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Namespace is "" for all namespaces, and for resources that have none.
	Namespace string `json:"namespace,omitempty"`
}

// frondGroup is the API group of what Frond itself delivers to nodes beside Kubernetes' objects.
const frondGroup = "frond.io"

// scopesResource is the resource of scopes' markers.
const scopesResource = "scopes"

// maxNameToken bounds each part of a scope, as Kubernetes bounds names.
const maxNameToken = 253

// Marker is the key of the message whose object is a ScopeMark. It tells scopes apart by all but the version: a node gets one
// version of a resource.
func (s Scope) Marker() Key {
	name := s.Resource
	if s.Group != "" {
		name += "." + s.Group
	}
	return Key{Group: frondGroup, Resource: scopesResource, Namespace: s.Namespace, Name: name}
}

// ScopeOf undoes Scope.Marker, without the version; ok is false for a key that is no marker of a scope.
func ScopeOf(marker Key) (s Scope, ok bool) {
	if marker.Group != frondGroup || marker.Resource != scopesResource {
		return Scope{}, false
	}
	resource, group, _ := strings.Cut(marker.Name, ".")
	return Scope{Group: group, Resource: resource, Namespace: marker.Namespace}, resource != ""
}

// Covers reports whether an object belongs to the scope.
func (s Scope) Covers(key Key) bool {
	return s.Group == key.Group && s.Resource == key.Resource && (s.Namespace == "" || s.Namespace == key.Namespace)
}

// String returns the scope as people write it: "widgets.v1.example.com in default".
func (s Scope) String() string {
	text := s.Resource + "." + s.Version
	if s.Group != "" {
		text += "." + s.Group
	}
	if s.Namespace == "" {
		return text
	}
	return text + " in " + s.Namespace
}

// Validate reports whether a scope can name anything. Subresources, wildcards and Frond's own group are none.
func (s Scope) Validate() error {
	for _, part := range []string{s.Group, s.Version, s.Resource, s.Namespace} {
		if len(part) > maxNameToken || strings.ContainsFunc(part, isNotNameRune) {
			return fmt.Errorf("scope: %.120q is no name", part)
		}
	}
	if s.Version == "" || s.Resource == "" || strings.Contains(s.Resource, ".") || s.Group == frondGroup {
		return fmt.Errorf("scope: %.120q names no resource", s.String())
	}
	return nil
}

func isNotNameRune(r rune) bool {
	return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
}

// ScopeWant is a scope and who at the node asked for it.
type ScopeWant struct {
	Scope
	// Users are user names as Kubernetes knows them: system:serviceaccount:<namespace>:<name>, or system:node:<node>.
	Users []string `json:"users"`
}

// ScopesRequest is all that the components of a node want, on call.cloud.<node>.scopes. It replaces what was asked before.
type ScopesRequest struct {
	// Order is higher than in each request before that the cloud took.
	Order uint64      `json:"order"`
	Wants []ScopeWant `json:"wants"`
}

// Limits of a ScopesRequest. More is refused as a whole, and the cloud keeps what it had.
const (
	MaxScopes     = 256
	MaxScopeUsers = 64
)

// Validate joins all faults of a request.
func (r ScopesRequest) Validate() error {
	if len(r.Wants) > MaxScopes {
		return fmt.Errorf("%d scopes, at most %d", len(r.Wants), MaxScopes)
	}
	var faults []error
	for _, w := range r.Wants {
		if err := w.Validate(); err != nil {
			faults = append(faults, err)
		}
		if len(w.Users) == 0 || len(w.Users) > MaxScopeUsers {
			faults = append(faults, fmt.Errorf("scope %.120q: %d users, 1 to %d are possible", w.String(), len(w.Users), MaxScopeUsers))
		}
		for _, user := range w.Users {
			if user == "" || len(user) > 2*maxNameToken {
				faults = append(faults, fmt.Errorf("scope %.120q: user %.120q", w.String(), user))
			}
		}
	}
	return errors.Join(faults...)
}

// ScopesReply answers a ScopesRequest. Either Error is set, or the rest.
type ScopesReply struct {
	Error string `json:"error,omitempty"`
	// Order is the Order that the cloud holds. If it is another one than was sent, the request came too late and changed
	// nothing: send it again with a higher one.
	Order uint64 `json:"order,omitempty"`
	// Verdicts say yes or no for each scope and user that was asked for; empty if the request changed nothing.
	Verdicts []ScopeVerdict `json:"verdicts,omitempty"`
}

// ScopeVerdict is the cloud's word on one scope for one user. It is judged again from time to time; the marker of the scope
// tells what holds.
type ScopeVerdict struct {
	Scope
	User string `json:"user"`
	// Reason is "" if the scope is granted to the user.
	Reason ScopeReason `json:"reason,omitempty"`
	// Message tells people more; "" if granted.
	Message string `json:"message,omitempty"`
}

// ScopeReason says why a scope is refused.
type ScopeReason string

// The reasons.
const (
	// ScopeForeign: the user is no service account of a pod on this node, nor the node, nor one that the operator allows.
	ScopeForeign ScopeReason = "ForeignUser"
	// ScopeForbidden: Kubernetes does not let the user list and watch it.
	ScopeForbidden ScopeReason = "Forbidden"
	// ScopeNotServed: the cluster has no such resource, or delivers another version of it.
	ScopeNotServed ScopeReason = "NotServed"
	// ScopeTooLarge: it holds more objects than a scope may, or the node asked for too many scopes.
	ScopeTooLarge ScopeReason = "TooLarge"
	// ScopeUnsuitable: leases and events live at the node, and what can be listed but not watched cannot be followed.
	ScopeUnsuitable ScopeReason = "Unsuitable"
	// ScopeUnjudged: it could not be judged yet; ask again.
	ScopeUnjudged ScopeReason = "Unjudged"
)

// ScopeMark is the object of a scope's marker. While the store holds it, the scope is granted, and the store holds every
// object of it that there was when it was granted, as well as each change since that the stream has brought.
type ScopeMark struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   ScopeMarkMeta `json:"metadata"`
	Spec       ScopeKind     `json:"spec"`
}

// ScopeMarkMeta names a marker.
type ScopeMarkMeta struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// ScopeKind is what the marker tells of the resource, for the node's discovery.
type ScopeKind struct {
	Scope
	Kind       string `json:"kind"`
	Namespaced bool   `json:"namespaced,omitempty"`
}

// Mark makes the object of a scope's marker.
func (k ScopeKind) Mark() ScopeMark {
	key := k.Marker()
	return ScopeMark{
		APIVersion: frondGroup + "/v1", Kind: "Scope", Metadata: ScopeMarkMeta{Name: key.Name, Namespace: key.Namespace}, Spec: k,
	}
}

// TokenKeysKey is the key of the message whose object is TokenKeys.
func TokenKeysKey() Key { return Key{Group: frondGroup, Resource: "keys", Name: "serviceaccounts"} }

// TokenKeys is what a node needs to check service-account tokens by itself.
type TokenKeys struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   ScopeMarkMeta `json:"metadata"`
	// Issuer is the iss of valid tokens, and unless the operator said otherwise their audience.
	Issuer string `json:"issuer"`
	// Audiences of which a token must have one.
	Audiences []string `json:"audiences"`
	// JWKS is the apiserver's key set, as it serves it.
	JWKS json.RawMessage `json:"jwks"`
}
