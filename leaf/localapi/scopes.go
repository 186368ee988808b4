package localapi

import "github.com/frond-edge/frond/api/wire"

// WantedScopes returns all scopes that programs of this gateway want to follow, each once with all its users, and a channel
// that is closed at the next change after this call.
func (s *Server) WantedScopes() (wants []wire.ScopeWant, changed <-chan struct{}) {
	return s.scopes.Wanted()
}

// SetScopeVerdicts takes the cloud's verdicts on the scopes of WantedScopes. It does not block.
func (s *Server) SetScopeVerdicts(verdicts []wire.ScopeVerdict) { s.scopes.SetVerdicts(verdicts) }
