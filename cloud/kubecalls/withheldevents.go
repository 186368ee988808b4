package kubecalls

import (
	"fmt"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// withheldInterval is the minimum time between two such events about one node and namespace: a program may repeat
	// its request many times.
	withheldInterval = 10 * time.Minute
	// withheldMaxEntries bounds the memory of the events that were written.
	withheldMaxEntries = 4096
)

// WithheldEvents tells operators which gateways needed or requested an object in a protected namespace.
type WithheldEvents struct {
	warn func(node, reason, message string)

	mu           sync.Mutex
	lastReported map[string]time.Time // by node and namespace; guarded by mu
}

// NewWithheldEvents creates the reporter; warn writes an event on a Node and must not block.
func NewWithheldEvents(warn func(node, reason, message string)) *WithheldEvents {
	return &WithheldEvents{warn: warn, lastReported: map[string]time.Time{}}
}

// ReportNeeded reports an object that the node needs (desired.Config.OnWithheld).
func (w *WithheldEvents) ReportNeeded(node string, object, referrer wire.Key) {
	why := "it is bound to this gateway"
	if referrer != object {
		why = referrer.Human() + " refers to it"
	}
	w.reportOnce(node, object.Namespace, fmt.Sprintf("%s is not given to this gateway: namespace %s is protected (%s). "+
		"Remove the reference, or move the object to another namespace.", object.Human(), object.Namespace, why))
}

// reportRequested reports a Kubernetes request of a gateway that was refused.
func (w *WithheldEvents) reportRequested(node, namespace, method, path string) {
	w.reportOnce(node, namespace, fmt.Sprintf("%s %.200s was refused: namespace %s is protected, none of its objects is given to a gateway.", method, path, namespace))
}

func (w *WithheldEvents) reportOnce(node, namespace, message string) {
	now, key := time.Now(), node+"/"+namespace
	w.mu.Lock()
	told, ok := w.lastReported[key]
	recent := ok && now.Sub(told) < withheldInterval
	if !recent {
		if len(w.lastReported) >= withheldMaxEntries {
			clear(w.lastReported)
		}
		w.lastReported[key] = now
	}
	w.mu.Unlock()
	if !recent {
		w.warn(node, names.EventProtectedObjectWithheld, message)
	}
}
