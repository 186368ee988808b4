package localapi_test

import (
	"fmt"
	"net/http"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestDecodeCache_ConcurrentLists reads the same objects in every encoding, as tables, as metadata and as a watch's first
// events, all at the same time: with the race detector it fails if one answer changes an object that another one uses.
func TestDecodeCache_ConcurrentLists(t *testing.T) {
	g := newGateway(t, true)
	var all []metav1.Object
	for i := range 50 {
		all = append(all, newPod(fmt.Sprint("p", i), fmt.Sprint("u", i), fmt.Sprint(i+1)))
	}
	g.deliverObjects(all...)
	cfg := g.api.ClientConfig()
	transport := &http.Client{Transport: cfg.Transport}
	read := func(accept, query string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+"/api/v1/pods"+query, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", accept)
		resp, err := transport.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", accept, resp.Status)
		}
		return nil
	}
	var g1 errgroup.Group
	for _, accept := range []string{
		"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		for _, query := range []string{"", "?limit=7", "?labelSelector=none%3Dat-all"} {
			g1.Go(func() error {
				for range 5 {
					if err := read(accept, query); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	for _, protobuf := range allEncodings() {
		g1.Go(func() error {
			in, err := g.newClient(protobuf).CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			defer in.Stop()
			for range all {
				if e := <-in.ResultChan(); e.Type != watch.Added {
					return fmt.Errorf("event %v", e)
				}
			}
			return nil
		})
	}
	if err := g1.Wait(); err != nil {
		t.Error(err)
	}
}

// TestDecodeCache_ServesNewestState: an object decoded by an earlier list is never returned for a newer state.
func TestDecodeCache_ServesNewestState(t *testing.T) {
	g := newGateway(t, true)
	c := g.newClient(true)
	for i := range 5 {
		cm := newConfigMap("a", fmt.Sprint("value", i))
		cm.ResourceVersion = fmt.Sprint(i + 1)
		g.deliverObjects(cm)
		for range 2 {
			list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || list.Items[0].Data["key"] != cm.Data["key"] {
				t.Fatalf("%v, %v; want %s", list, err, cm.Data)
			}
		}
	}
}
