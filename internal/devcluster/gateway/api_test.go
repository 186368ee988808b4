package gateway

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestAPIPath(t *testing.T) {
	for want, key := range map[string]wire.Key{
		"/api/v1/namespaces/default/configmaps/web":                   {Resource: "configmaps", Namespace: "default", Name: "web"},
		"/api/v1/nodes/edge-1":                                        {Resource: "nodes", Name: "edge-1"},
		"/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/web-1": {Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "a", Name: "web-1"},
	} {
		if got := apiPath(key); got != want {
			t.Errorf("path of %v: got %s, want %s", key, got, want)
		}
	}
}
