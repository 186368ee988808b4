package wire

// Services and EndpointSlices reach a gateway by need: Services because a pod there is in their namespace, and otherwise both only in
// scopes. Until a gateway has said that it asks for these scopes (ScopesRequest.ServicesByNeed) it is given both whole, as scopes that
// it need not ask for.

// serviceScopes returns the kinds that reach a gateway by need, each in all namespaces.
func serviceScopes() [2]ScopeKind {
	return [2]ScopeKind{
		{Scope: Scope{Version: "v1", Resource: "services"}, Kind: "Service", Namespaced: true},
		{Scope: Scope{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, Kind: "EndpointSlice", Namespaced: true},
	}
}

// ServiceScopes returns the scopes of all Services and of all EndpointSlices.
func ServiceScopes() []ScopeKind {
	all := serviceScopes()
	return all[:]
}

// ServiceScope returns a scope on Services or EndpointSlices with its kind; ok is false for any other scope, also for one on
// another version of these kinds.
func ServiceScope(s Scope) (kind ScopeKind, ok bool) {
	for _, k := range serviceScopes() {
		if k.Group == s.Group && k.Resource == s.Resource && k.Version == s.Version {
			k.Namespace = s.Namespace
			return k, true
		}
	}
	return ScopeKind{}, false
}

// ServicesByNeedKey is the key of the message whose object says that the node has all Services and EndpointSlices only while it has the
// markers of the scopes on them. It follows these markers, and is never withdrawn. A node without it, of a cloud before this rule, has all
// of both.
func ServicesByNeedKey() Key { return Key{Group: frondGroup, Resource: "modes", Name: "services"} }

// ServicesByNeedMark is the object of ServicesByNeedKey.
type ServicesByNeedMark struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   ScopeMarkMeta `json:"metadata"`
}

// NewServicesByNeedMark returns the object of ServicesByNeedKey.
func NewServicesByNeedMark() ServicesByNeedMark {
	return ServicesByNeedMark{APIVersion: frondGroup + "/v1", Kind: "ServicesByNeed", Metadata: ScopeMarkMeta{Name: ServicesByNeedKey().Name}}
}
