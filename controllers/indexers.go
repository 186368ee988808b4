package controllers

import (
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
)

// AddIndexers adds those indexes to an informer that it does not have. Calls may be concurrent, also for one index: an index of a name is the same,
// whoever adds it.
func AddIndexers(informer toolscache.SharedIndexInformer, indexers toolscache.Indexers) error {
	for name, by := range indexers {
		if hasIndex(informer, name) {
			continue
		}
		err := informer.AddIndexers(toolscache.Indexers{name: by})
		if err != nil && !hasIndex(informer, name) { // another caller may have been first
			return fmt.Errorf("index: %w", err)
		}
	}
	return nil
}

// hasIndex asks for an index by a lookup, which takes the store's lock. GetIndexers takes none: to read its map while another caller adds an index ends
// the process.
func hasIndex(informer toolscache.SharedIndexInformer, name string) bool {
	_, err := informer.GetIndexer().IndexKeys(name, "")
	return err == nil
}
