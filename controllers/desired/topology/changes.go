package topology

import (
	"iter"
	"maps"
	"slices"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
)

// Changes are the objects whose shares may have changed.
type Changes struct {
	// Everywhere may have changed for each node that has them.
	Everywhere []wire.Key
	// Own may have changed for Nodes only.
	Own   []wire.Key
	Nodes []string
}

// OwnAt yields each of Nodes with each of Own.
func (c Changes) OwnAt() iter.Seq2[string, wire.Key] {
	return func(yield func(string, wire.Key) bool) {
		for _, node := range c.Nodes {
			for _, key := range c.Own {
				if !yield(node, key) {
					return
				}
			}
		}
	}
}

// AfterEvent returns the changes after an event of a Service or a Node. old is the object before it, nil if there was none.
func (s *Shares) AfterEvent(k *kinds.Spec, now client.Object, old any) Changes {
	switch now := now.(type) {
	case *corev1.Service:
		was, known := old.(*corev1.Service)
		policy := s.report(k.Key(now.Namespace, now.Name), now)
		if known {
			if before, _ := PolicyOf(was); before == policy {
				return Changes{}
			}
		}
		return Changes{Everywhere: s.endpointsOf(k.Key(now.Namespace, now.Name))}
	case *corev1.Node:
		before := ""
		if was, known := old.(*corev1.Node); known {
			before = was.Labels[corev1.LabelTopologyZone]
		}
		if before == now.Labels[corev1.LabelTopologyZone] {
			return Changes{}
		}
		return s.moved(Zone, map[string]bool{now.Name: true})
	}
	return Changes{}
}

// report logs an annotation that is not understood, once, and returns the policy.
func (s *Shares) report(key wire.Key, service *corev1.Service) Policy {
	policy, err := PolicyOf(service)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.faults, key)
	case s.faults[key] != err.Error():
		s.faults[key] = err.Error()
		s.log.Warn("service topology not understood: nodes are given their own endpoints only", zap.String("service", key.Human()), zap.Error(err))
	}
	return policy
}

// GroupsChanged returns the changes after the groups of nodes have changed.
func (s *Shares) GroupsChanged() Changes {
	k, ok := s.objects.Kind(kinds.ID{Resource: "nodes"})
	if !ok {
		return Changes{} // nothing was given
	}
	now := map[string]lastGroup{}
	for _, o := range k.Store.List() {
		if node, ok := o.(*corev1.Node); ok {
			group, known := s.groupOf(node.Name)
			now[node.Name] = lastGroup{group, known}
		}
	}
	s.mu.Lock()
	moved := map[string]bool{}
	for node, g := range now {
		if was, ok := s.last[node]; !ok || was != g {
			moved[node] = true
		}
	}
	for node := range s.last {
		if _, exists := now[node]; !exists {
			moved[node] = true
		}
	}
	s.last = now
	s.mu.Unlock()
	return s.moved(Group, moved)
}

// moved returns the changes after nodes have come to another group or zone.
func (s *Shares) moved(policy Policy, nodes map[string]bool) Changes {
	if len(nodes) == 0 {
		return Changes{}
	}
	s.revision.Add(1)
	c := Changes{Nodes: slices.Collect(maps.Keys(nodes))}
	services, ok := s.objects.Kind(kinds.Services())
	if !ok {
		return Changes{}
	}
	for _, o := range services.Store.List() {
		service, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		if of, _ := PolicyOf(service); of != policy {
			continue
		}
		for _, key := range s.endpointsOf(services.Key(service.Namespace, service.Name)) {
			o, err := s.objects.Get(key)
			if err != nil || hasEndpoint(o, func(node string) bool { return nodes[node] }) {
				c.Everywhere = append(c.Everywhere, key)
			} else {
				c.Own = append(c.Own, key)
			}
		}
	}
	return c
}

// endpointsOf returns the slices of a Service, and its Endpoints if the cache has them.
func (s *Shares) endpointsOf(service wire.Key) []wire.Key {
	keys, err := s.objects.SlicesOf(service)
	if err != nil {
		s.log.Error("endpoint slices not listed", zap.String("service", service.Human()), zap.Error(err))
	}
	whole := wire.Key{Resource: "endpoints", Namespace: service.Namespace, Name: service.Name}
	if s.objects.Has(whole) {
		keys = append(keys, whole)
	}
	return keys
}
