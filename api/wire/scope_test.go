package wire_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestScope_MarkerAndScopeOfAreInverse(t *testing.T) {
	for want, s := range map[string]wire.Scope{
		"frond_io.scopes._.services":                        {Version: "v1", Resource: "services"},
		"frond_io.scopes.shop.widgets_example_com":          {Group: "example.com", Version: "v1", Resource: "widgets", Namespace: "shop"},
		"frond_io.scopes._.endpointslices_discovery_k8s_io": {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	} {
		if got := s.Marker().String(); got != want {
			t.Errorf("marker of %s: %s, want %s", s, got, want)
		}
		back, ok := wire.ScopeOf(s.Marker())
		if back.Version = s.Version; !ok || back != s {
			t.Errorf("ScopeOf(%s) = %+v, %v", want, back, ok)
		}
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []wire.Key{wire.SnapshotMarker(), wire.TokenKeysKey(), {Group: "example.com", Resource: "scopes", Name: "pods"}} {
		if s, ok := wire.ScopeOf(key); ok {
			t.Errorf("%s is the marker of %s", key, s)
		}
	}
}

func TestScope_Covers(t *testing.T) {
	all := wire.Scope{Version: "v1", Resource: "pods"}
	shop := wire.Scope{Version: "v1", Resource: "pods", Namespace: "shop"}
	for key, want := range map[wire.Key][2]bool{
		{Resource: "pods", Namespace: "shop", Name: "a"}:               {true, true},
		{Resource: "pods", Namespace: "other", Name: "a"}:              {true, false},
		{Group: "x.y", Resource: "pods", Namespace: "shop", Name: "a"}: {},
		{Resource: "services", Namespace: "shop", Name: "a"}:           {},
	} {
		if got := [2]bool{all.Covers(key), shop.Covers(key)}; got != want {
			t.Errorf("%s: covered %v, want %v", key, got, want)
		}
	}
}

func FuzzScope(f *testing.F) {
	f.Add("", "v1", "pods", "shop")
	f.Add("a.b", "v1", "x.y", "")
	f.Add("", "v1", "", "*")
	f.Fuzz(func(t *testing.T, group, version, resource, namespace string) {
		s := wire.Scope{Group: group, Version: version, Resource: resource, Namespace: namespace}
		if s.Validate() != nil {
			return
		}
		back, ok := wire.ScopeOf(s.Marker())
		if back.Version = version; !ok || back != s {
			t.Fatalf("%+v became %+v, %v", s, back, ok)
		}
		if key, err := wire.ParseKey(s.Marker().String()); err != nil || key != s.Marker() || strings.Contains(resource, ".") {
			t.Fatalf("marker %s: %+v, %v", s.Marker(), key, err)
		}
	})
}
