package config

import (
	"errors"
	"slices"
)

// Scopes bounds what components at the gateways may have sent because they list or watch it.
type Scopes struct {
	// PerNode is how many scopes one node may have; 0 means 64, and 256 is the most.
	PerNode int `json:"perNode,omitempty"`
	// Objects is how many objects one scope may hold; 0 means 20,000.
	Objects int `json:"objects,omitempty"`
	// JudgeEvery is how often each node's scopes are judged again, beside each change of RBAC; 0 means 2m.
	JudgeEvery Duration `json:"judgeEvery,omitzero"`
	// Users are users that every gateway may ask for, such as system:kube-proxy for one that runs outside of a pod. A stolen
	// gateway may ask for them as well. Pods' service accounts and the node itself need no word here.
	Users []string `json:"users,omitempty"`
	// TokenAudiences are the audiences of which a pod's token must have one to be valid at its gateway; none means the
	// issuer, which is the apiserver's default, too.
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
