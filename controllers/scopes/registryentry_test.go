package scopes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

var widgets = wire.Scope{Group: "example.com", Version: "v1", Resource: "widgets", Namespace: "shop"}

func TestNormalizeWants(t *testing.T) {
	gadgets := widgets
	gadgets.Resource = "gadgets"
	got := normalizeWants([]wire.ScopeWant{
		{Scope: widgets, Users: []string{"b"}}, {Scope: gadgets, Users: []string{"a"}}, {Scope: widgets, Users: []string{"b", "a"}},
	})
	want := []wire.ScopeWant{{Scope: gadgets, Users: []string{"a"}}, {Scope: widgets, Users: []string{"a", "b"}}}
	if diff := cmp.Diff(want, got); diff != "" || !sameWants(want, got) {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGrantsFrom(t *testing.T) {
	kind := wire.ScopeKind{Scope: widgets, Kind: "Widget", Namespaced: true}
	old := widgets
	old.Version = "v1beta1"
	said := func(kind wire.ScopeKind, reasons ...wire.ScopeReason) scopeVerdict {
		v := scopeVerdict{kind: kind}
		for i, reason := range reasons {
			v.users = append(v.users, wire.ScopeVerdict{Scope: kind.Scope, User: string(rune('a' + i)), Reason: reason})
		}
		return v
	}
	unknown := wire.ScopeKind{Scope: widgets}
	had := []grant{{kind, []string{"a"}}}
	for name, tt := range map[string]struct {
		verdicts []scopeVerdict
		before   []grant
		want     []grant
	}{
		"one of two":                         {[]scopeVerdict{said(kind, wire.ScopeForbidden, "")}, nil, []grant{{kind, []string{"b"}}}},
		"nobody":                             {[]scopeVerdict{said(kind, wire.ScopeForbidden)}, had, []grant{}},
		"wanted no more":                     {nil, had, []grant{}},
		"not judged, was granted":            {[]scopeVerdict{said(unknown, wire.ScopeUnjudged)}, had, had},
		"not judged, was not granted":        {[]scopeVerdict{said(unknown, wire.ScopeForbidden, wire.ScopeUnjudged)}, had, []grant{}},
		"not judged, never granted":          {[]scopeVerdict{said(unknown, wire.ScopeUnjudged)}, nil, []grant{}},
		"no longer served":                   {[]scopeVerdict{said(unknown, wire.ScopeNotServed)}, had, []grant{}},
		"another version that was not known": {[]scopeVerdict{said(kind, ""), said(wire.ScopeKind{Scope: old, Kind: "Widget"}, "")}, nil, had},
	} {
		got := grantsFrom(tt.verdicts, tt.before)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestGrantTable_ServicesByNeed: that a node asks by need, or does so no longer, is a change of what it is granted.
func TestGrantTable_ServicesByNeed(t *testing.T) {
	table := NewGrantTable()
	table.markLoaded()
	entry, changes := registryEntry{}, 0
	for _, byNeed := range []bool{false, true, true, false} {
		data, err := entry.next(wire.ScopesRequest{ServicesByNeed: byNeed}, nil, time.UnixMilli(1)).encode()
		if err != nil {
			t.Fatal(err)
		}
		if entry, err = decodeEntry(data); err != nil {
			t.Fatal(err)
		}
		if table.put("a", entry) {
			changes++
		}
		if table.ServicesByNeed("a") != byNeed {
			t.Errorf("%v was stored, and %v is known", byNeed, !byNeed)
		}
		if entry.request().ServicesByNeed != byNeed {
			t.Error("a new evaluation loses it")
		}
	}
	if changes != 3 {
		t.Errorf("%d changes, want 3: the first entry, to by need, and back", changes)
	}
	if table.ServicesByNeed("unknown") {
		t.Error("a node that has said nothing asks by need")
	}
}

func TestRegistryEntry_OrderSurvivesLoss(t *testing.T) {
	now := time.UnixMilli(1_000)
	first := registryEntry{}.next(wire.ScopesRequest{Order: 1}, nil, now)
	second := first.next(wire.ScopesRequest{Order: 2}, nil, now) // in the same millisecond
	third := second.next(wire.ScopesRequest{Order: 3}, nil, now.Add(-time.Hour))
	if first.Written != 1_000 || second.Written <= first.Written || third.Written <= second.Written {
		t.Errorf("written %d, %d, %d", first.Written, second.Written, third.Written)
	}
	anew := registryEntry{}.next(wire.ScopesRequest{Order: 1}, nil, now.Add(time.Second)) // the registry was lost
	if anew.Written <= third.Written {
		t.Errorf("after the loss %d, before %d", anew.Written, third.Written)
	}
	if _, err := decodeEntry([]byte("garbage")); err == nil {
		t.Error("garbage is an entry")
	}
}
