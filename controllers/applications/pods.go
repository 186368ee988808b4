package applications

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/applications/render"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/podcache"
)

// podIndexer returns the cache of pods, with the index by Node that the engine uses too.
func podIndexer(ctx context.Context, objects cache.Cache) (toolscache.Indexer, error) {
	informer, err := objects.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("follow pods: %w", err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("the informer of pods is a %T", informer)
	}
	err = controllers.AddIndexers(shared, toolscache.Indexers{kinds.NodeIndex: func(o any) ([]string, error) {
		if pod, ok := podcache.Of(o); ok {
			return []string{pod.Node()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	return shared.GetIndexer(), nil
}

// countPodsOn counts the pods of a workload on a Node, by their names, which ReplicaSets, StatefulSets and DaemonSets derive from its name.
func countPodsOn(pods toolscache.Indexer, node string, id render.ID) int {
	found, err := pods.ByIndex(kinds.NodeIndex, node)
	if err != nil {
		return 0
	}
	n := 0
	for _, o := range found {
		pod, ok := podcache.Of(o)
		if !ok || pod.Namespace() != id.Namespace || pod.Ended() {
			continue
		}
		rest, ok := strings.CutPrefix(pod.Name(), id.Name+"-")
		if dashes := strings.Count(rest, "-"); ok && (id.Kind == "Deployment" && dashes == 1 || id.Kind != "Deployment" && dashes == 0) {
			n++
		}
	}
	return n
}

// sameMetadata reports whether two versions of a NodeGroup are equal in what applications read.
func sameMetadata(a, b *apps.NodeGroup) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Status.Ready == b.Status.Ready // pods on Nodes without a link are counted apart
}
