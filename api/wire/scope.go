package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Scope is the set of objects that a component at the edge lists or watches: every object of a resource, in one namespace or in all.
type Scope struct {
	Group    string `json:"group,omitempty"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Namespace is "" for all namespaces, and for resources without namespaces.
	Namespace string `json:"namespace,omitempty"`
}

// frondGroup is the API group of the objects that Frond itself delivers to nodes besides those of Kubernetes.
const frondGroup = "frond.io"

// scopesResource is the resource of scopes' markers.
const scopesResource = "scopes"

// maxNameToken bounds each part of a scope, as Kubernetes bounds names.
const maxNameToken = 253

// Marker is the key of the message whose object is a ScopeMark. It distinguishes scopes by everything except the version: a node gets one
// version of a resource.
func (s Scope) Marker() Key {
	name := s.Resource
	if s.Group != "" {
		name += "." + s.Group
	}
	return Key{Group: frondGroup, Resource: scopesResource, Namespace: s.Namespace, Name: name}
}

// ScopeOf is the inverse of Scope.Marker, without the version; ok is false for a key that is not a scope's marker.
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

// String returns the scope for humans: "widgets.v1.example.com in default".
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

// Validate reports an error for a scope that cannot name a resource, such as a subresource, a wildcard or Frond's own group.
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

// ScopeWant is a scope and the users at the node that requested it.
type ScopeWant struct {
	Scope
	// Users are user names as Kubernetes knows them: system:serviceaccount:<namespace>:<name>, or system:node:<node>.
	Users []string `json:"users"`
}

// ScopesRequest lists all scopes that the components of a node want, on call.cloud.<node>.scopes. It replaces the previous request.
type ScopesRequest struct {
	// Order is higher than in each earlier request that the cloud accepted.
	Order uint64      `json:"order"`
	Wants []ScopeWant `json:"wants"`
	// ServicesByNeed: the node asks for the scopes on Services and EndpointSlices that its components want. Otherwise, as all nodes of
	// versions before this field, it expects all of both.
	ServicesByNeed bool `json:"servicesByNeed,omitempty"`
}

// Limits of a ScopesRequest. The cloud refuses a larger request as a whole and keeps the previous one.
const (
	MaxScopes     = 256
	MaxScopeUsers = 64
)

// Validate joins all errors of a request.
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
	// Order is the Order of a request that the cloud holds now. If it is higher than the sent one, the request came too late and changed
	// nothing: send it again with one that is higher still.
	Order uint64 `json:"order,omitempty"`
	// Verdicts grant or refuse each requested scope and user; empty if the request changed nothing.
	Verdicts []ScopeVerdict `json:"verdicts,omitempty"`
}

// ScopeVerdict is the cloud's decision on one scope for one user. It is evaluated again from time to time; the scope's marker shows the
// current decision.
type ScopeVerdict struct {
	Scope
	User string `json:"user"`
	// Reason is "" if the scope is granted to the user.
	Reason ScopeReason `json:"reason,omitempty"`
	// Message explains the reason to operators; "" if granted.
	Message string `json:"message,omitempty"`
}

// ScopeReason is the reason why a scope is refused.
type ScopeReason string

// The reasons.
const (
	// ScopeForeign: the user is not a service account of a pod on this node, nor the node, nor a user that the operator allows.
	ScopeForeign ScopeReason = "ForeignUser"
	// ScopeForbidden: Kubernetes does not let the user list and watch it.
	ScopeForbidden ScopeReason = "Forbidden"
	// ScopeNotServed: the cluster has no such resource, or delivers another version of it.
	ScopeNotServed ScopeReason = "NotServed"
	// ScopeTooLarge: the scope holds more objects than allowed, or the node requested too many scopes.
	ScopeTooLarge ScopeReason = "TooLarge"
	// ScopeUnsuitable: leases and events live at the node, and a resource that can be listed but not watched cannot be followed.
	ScopeUnsuitable ScopeReason = "Unsuitable"
	// ScopeUnjudged: the scope could not be evaluated yet; ask again.
	ScopeUnjudged ScopeReason = "Unjudged"
)

// ScopeMark is the object of a scope's marker. While the store holds it, the scope is granted. The store then holds every object that the
// scope had when it was granted, and each later change that the stream has delivered.
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

// ScopeKind describes the resource in the marker, for the node's discovery.
type ScopeKind struct {
	Scope
	Kind       string `json:"kind"`
	Namespaced bool   `json:"namespaced,omitempty"`
}

// Mark returns the object of a scope's marker.
func (k ScopeKind) Mark() ScopeMark {
	key := k.Marker()
	return ScopeMark{
		APIVersion: frondGroup + "/v1", Kind: "Scope", Metadata: ScopeMarkMeta{Name: key.Name, Namespace: key.Namespace}, Spec: k,
	}
}

// TokenKeysKey is the key of the message whose object is TokenKeys.
func TokenKeysKey() Key { return Key{Group: frondGroup, Resource: "keys", Name: "serviceaccounts"} }

// TokenKeys is the data with which a node checks service-account tokens itself.
type TokenKeys struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   ScopeMarkMeta `json:"metadata"`
	// Issuer is the iss of valid tokens, and their audience unless the operator configured others.
	Issuer string `json:"issuer"`
	// Audiences are the accepted audiences; a token must have one of them.
	Audiences []string `json:"audiences"`
	// JWKS is the apiserver's key set, as it serves it.
	JWKS json.RawMessage `json:"jwks"`
}
