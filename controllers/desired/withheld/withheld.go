// Package withheld reports the objects in protected namespaces that nodes need and are not given.
package withheld

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Reporter counts and reports withheld objects. It has no lock of its own.
type Reporter struct {
	Protected controllers.ProtectedNamespaces
	// Count counts by resource.
	Count *prometheus.CounterVec
	// On is called for each report; nil: no call.
	On  func(node string, object, referrer wire.Key)
	Log *zap.Logger
}

// Reported are the objects of one node that were reported. The zero value is ready to use.
type Reported struct{ keys map[wire.Key]struct{} }

// Update reports an object in a protected namespace that a node needs, once for as long as the node needs it. referrer returns the object
// that refers to it.
func (r *Reporter) Update(node string, reported *Reported, key wire.Key, needed bool, referrer func() wire.Key) {
	if !r.Protected.Covers(key) {
		return
	}
	if !needed {
		delete(reported.keys, key)
		return
	}
	if _, ok := reported.keys[key]; ok {
		return
	}
	if reported.keys == nil {
		reported.keys = map[wire.Key]struct{}{}
	}
	reported.keys[key] = struct{}{}
	by := referrer()
	r.Count.WithLabelValues(key.Resource).Inc()
	r.Log.Warn("object withheld from node: its namespace is protected",
		zap.String("node", node), zap.String("object", key.Human()), zap.String("referrer", by.Human()))
	if r.On != nil {
		r.On(node, key, by)
	}
}
