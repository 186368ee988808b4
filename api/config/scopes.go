package config

import (
	"errors"
	"slices"
)

// Scopes bounds the objects that components at the gateways receive because they list or watch them.
type Scopes struct {
	// PerNode is how many scopes one node may have; 0 means 64, and the maximum is 256.
	PerNode int `json:"perNode,omitempty"`
	// Objects is how many objects one scope may hold; 0 means 20,000.
	Objects int `json:"objects,omitempty"`
	// JudgeEvery is how often each node's scopes are evaluated again, besides each change of RBAC; 0 means 2m.
	JudgeEvery Duration `json:"judgeEvery,omitzero"`
	// Users are users for which every gateway may request scopes, such as system:kube-proxy for a kube-proxy outside of a pod. A stolen
	// gateway may do so as well. Pods' service accounts and the node itself need no entry.
	Users []string `json:"users,omitempty"`
	// TokenAudiences are the accepted audiences of pods' tokens at their gateway; a token must have one of them. None means the issuer,
	// which is the apiserver's default, too.
	TokenAudiences []string `json:"tokenAudiences,omitempty"`
}

func (s Scopes) validate() error {
	var faults []error
	if s.PerNode < 0 || s.PerNode > 256 {
		faults = append(faults, errors.New("scopes.perNode: not within 0 and 256"))
	}
	if s.Objects < 0 {
		faults = append(faults, errors.New("scopes.objects: negative"))
	}
	if s.JudgeEvery < 0 {
		faults = append(faults, errors.New("scopes.judgeEvery: negative"))
	}
	if slices.Contains(s.Users, "") || slices.Contains(s.TokenAudiences, "") {
		faults = append(faults, errors.New("scopes: a user or an audience is empty"))
	}
	return errors.Join(faults...)
}
