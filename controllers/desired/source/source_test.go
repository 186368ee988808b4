package source_test

import (
	"fmt"
	"sync"
	"testing"

	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/source"
	"github.com/frond-edge/frond/controllers/desired/topology"
)

// tenGroups puts node i into group i modulo 10.
type tenGroups struct{}

func (tenGroups) GroupOf(node string) (group string, known bool) { return node[len(node)-1:], true }

// TestSource_EncodesAShareOnce: the share of a slice is made once for all nodes of a group, however many workers ask for it at a time, and is
// the same as before for the groups that a change does not concern.
func TestSource_EncodesAShareOnce(t *testing.T) {
	const nodes = 200
	objects, fixed := objectcache.New(), kinds.TableByID(true)
	for _, k := range fixed {
		objects.Add(objectcache.Kind{Spec: k, Store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, k.Indexers())})
	}
	add := func(id kinds.ID, o any) {
		k, _ := objects.Kind(id)
		if err := k.Store.Update(o); err != nil {
			t.Fatal(err)
		}
	}
	service := &corev1.Service{}
	service.Name, service.Annotations = "web", map[string]string{"frond.io/service-topology": "group"}
	add(kinds.Services(), service)
	slice := &discoveryv1.EndpointSlice{}
	slice.Name, slice.UID, slice.ResourceVersion, slice.Generation = "web-1", "u", "1", 1
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	name := func(i int) string { return fmt.Sprintf("node-%03d", i) }
	for i := range 100 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", i)}, NodeName: new(name(i))})
	}
	add(kinds.Slices(), slice)
	s := source.New(objects, fixed, topology.NewShares(objects, tenGroups{}, zaptest.NewLogger(t)))
	key := wire.Key{Group: discoveryv1.GroupName, Resource: "endpointslices", Name: "web-1"}
	readAll := func() map[string]string {
		var mu sync.Mutex
		var all sync.WaitGroup
		digests := map[string]string{}
		for i := range nodes {
			all.Go(func() {
				p, err := s.Payload(name(i), key, false)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case !p.Encoded() || len(p.Object) == 0 || p.Version != slice.ResourceVersion:
					t.Errorf("payload %+v", p)
				default:
					digests[name(i)] = p.Digest
				}
			})
		}
		all.Wait()
		return digests
	}
	before := readAll()
	readAll()
	if got := s.Cuts(); got != 10 {
		t.Errorf("%d shares were made, want one for each group", got)
	}
	changed := slice.DeepCopy()
	changed.ResourceVersion, changed.Generation = "2", 2
	changed.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "now"}
	changed.Endpoints[3].Addresses = []string{"10.0.1.3"}
	slice = changed
	add(kinds.Slices(), changed)
	for node, digest := range readAll() {
		if concerned := node[len(node)-1:] == "3"; concerned == (digest == before[node]) {
			t.Errorf("%s: differs: %v", node, digest != before[node])
		}
	}
	if got := s.Cuts(); got != 20 {
		t.Errorf("%d shares were made of two versions", got)
	}
}
