package gateway

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

var errNoDocument = errors.New("no such document")

// discoveryDocuments serves what a gateway's API says of some groups. devicemodels is only in the version that its group does not prefer.
func discoveryDocuments(path string, into any) error {
	document, ok := map[string]string{
		"/apis/discovery.k8s.io":             `{"versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}}`,
		"/apis/discovery.k8s.io/v1":          `{"resources":[{"name":"endpointslices"}]}`,
		"/apis/devices.kubeedge.io":          `{"versions":[{"version":"v1beta1"},{"version":"v1alpha2"}],"preferredVersion":{"version":"v1beta1"}}`,
		"/apis/devices.kubeedge.io/v1beta1":  `{"resources":[{"name":"devices"}]}`,
		"/apis/devices.kubeedge.io/v1alpha2": `{"resources":[{"name":"devices"},{"name":"devicemodels"}]}`,
	}[path]
	if !ok {
		return errNoDocument
	}
	return json.Unmarshal([]byte(document), into)
}

func TestAPIPath(t *testing.T) {
	for want, key := range map[string]wire.Key{
		"/api/v1/namespaces/default/configmaps/web":                               {Resource: "configmaps", Namespace: "default", Name: "web"},
		"/api/v1/nodes/edge-1":                                                    {Resource: "nodes", Name: "edge-1"},
		"/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/web-1":             {Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "a", Name: "web-1"},
		"/apis/devices.kubeedge.io/v1beta1/namespaces/a/devices/lamp":             {Group: "devices.kubeedge.io", Resource: "devices", Namespace: "a", Name: "lamp"},
		"/apis/devices.kubeedge.io/v1alpha2/namespaces/default/devicemodels/lamp": {Group: "devices.kubeedge.io", Resource: "devicemodels", Namespace: "default", Name: "lamp"},
	} {
		version, err := servedVersion(key, discoveryDocuments)
		if got := apiPath(key, version); got != want || err != nil {
			t.Errorf("path of %v: got %s %v, want %s", key, got, err, want)
		}
	}
}

func TestServedVersion_UnknownResource(t *testing.T) {
	if version, err := servedVersion(wire.Key{Group: "devices.kubeedge.io", Resource: "lamps", Name: "x"}, discoveryDocuments); err == nil {
		t.Errorf("a resource that no version serves: %s", version)
	}
	if _, err := servedVersion(wire.Key{Group: "frond.io", Resource: "kinds", Name: "x"}, discoveryDocuments); !errors.Is(err, errNoDocument) {
		t.Errorf("a group that is not served: %v", err)
	}
}
