package desired

import (
	"slices"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// reportWithheld counts and reports an object in a protected namespace that a node needs, once for as long as the node
// needs it. The caller holds mu.
func (e *Engine) reportWithheld(s *nodeState, key wire.Key, needed bool) {
	if !e.cfg.Protected.Covers(key) {
		return
	}
	if !needed {
		delete(s.withheld, key)
		return
	}
	if _, reported := s.withheld[key]; reported {
		return
	}
	if s.withheld == nil {
		s.withheld = map[wire.Key]struct{}{}
	}
	s.withheld[key] = struct{}{}
	referrer := s.firstReferrer(e.graph.vertices[key])
	e.metrics.withheld.WithLabelValues(key.Resource).Inc()
	e.log.Warn("object withheld from node: its namespace is protected",
		zap.String("node", s.name), zap.String("object", key.Human()), zap.String("referrer", referrer.Human()))
	if e.cfg.OnWithheld != nil {
		e.cfg.OnWithheld(s.name, key, referrer)
	}
}

// firstReferrer returns an object that a node needs and that refers to v, the first by name; v itself if there is none.
// The caller holds Engine.mu.
func (s *nodeState) firstReferrer(v *vertex) wire.Key {
	if v == nil {
		return wire.Key{}
	}
	var found []wire.Key
	for needer := range s.wants {
		if slices.Contains(needer.refs, v) {
			found = append(found, needer.key)
		}
	}
	if len(found) == 0 {
		return v.key
	}
	return slices.MinFunc(found, wire.Key.Compare)
}
