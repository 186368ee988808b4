package wire_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestKey_StringAndParseKeyAreInverse(t *testing.T) {
	for want, key := range map[string]wire.Key{
		"core.configmaps.default.kube-root-ca_crt":                   {Resource: "configmaps", Namespace: "default", Name: "kube-root-ca.crt"},
		"core.nodes._.edge-1":                                        {Resource: "nodes", Name: "edge-1"},
		"apps.deployments.a.b":                                       {Group: "apps", Resource: "deployments", Namespace: "a", Name: "b"},
		"rbac_authorization_k8s_io.clusterroles._.system=3Anode":     {Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "system:node"},
		"=63ore.things._.x=5Fy":                                      {Group: "core", Resource: "things", Name: "x_y"},
		"discovery_k8s_io.endpointslices.kube-system.kube-dns-x7=20": {Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "kube-system", Name: "kube-dns-x7 "},
	} {
		if got := key.String(); got != want {
			t.Errorf("String(%+v) = %q, want %q", key, got, want)
		}
		back, err := wire.ParseKey(want)
		if err != nil || back != key {
			t.Errorf("ParseKey(%q) = %+v, %v, want %+v", want, back, err, key)
		}
	}
}

func TestParseKey_RefusesMalformed(t *testing.T) {
	for _, s := range []string{
		"", "core", "core.pods.a", "core.pods.a.b.c", "core.pods.a.", "core.pods.a._", "core._.a.b", "core.pods.a.b=", "core.pods.a.=2",
		"core.pods.a.=zz", "core.pods.a.=61", "core.pods.a.=2e", "_.pods.a.b", "core.pods.a.*", "core.pods.a.>", "=63=6Fre.pods.a.b",
	} {
		if k, err := wire.ParseKey(s); err == nil {
			t.Errorf("ParseKey(%q) = %+v, want an error", s, k)
		}
	}
}

var token = regexp.MustCompile(`^[-_=A-Za-z0-9]+$`)

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", ".", "..", "_", "a.b", "core", "=", "=63ore", "a:b", "ä", "\x00", "a b", "*", ">", "a_b", "A%2F"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := wire.Escape(s)
		if !token.MatchString(e) {
			t.Fatalf("Escape(%q) = %q is not one token", s, e)
		}
		if back, err := wire.Unescape(e); err != nil || back != s {
			t.Fatalf("Unescape(Escape(%q)) = %q, %v", s, back, err)
		}
		k := wire.Key{Group: s, Resource: "r", Namespace: s, Name: s + "x"}
		if back, err := wire.ParseKey(k.String()); err != nil || back != k {
			t.Fatalf("ParseKey(%q) = %+v, %v, want %+v", k.String(), back, err, k)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("core.pods.default.web-1")
	f.Add("=63ore.pods._.=2E")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := wire.ParseKey(s)
		if err != nil {
			return
		}
		if k.String() != s {
			t.Fatalf("ParseKey(%q) = %+v, which spells %q", s, k, k.String())
		}
		if strings.Count(s, ".") != 3 {
			t.Fatalf("%q has not four tokens", s)
		}
	})
}
