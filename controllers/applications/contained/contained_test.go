package contained_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/controllers/applications/contained"
	"github.com/frond-edge/frond/controllers/applications/render"
)

func list(ids ...render.ID) contained.List {
	var objects []render.Object
	for i, id := range ids {
		objects = append(objects, render.Object{Ordinal: i, ID: id})
	}
	return contained.Of(objects)
}

func id(group, version, kind, name string) render.ID {
	return render.ID{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, Namespace: "shop", Name: name}
}

// TestList_VersionsAreOneObject: an object that is written in another version of its kind must not be deleted as the old one.
func TestList_VersionsAreOneObject(t *testing.T) {
	old, next := id("autoscaling", "v1", "HorizontalPodAutoscaler", "web"), id("autoscaling", "v2", "HorizontalPodAutoscaler", "web")
	other := id("", "v1", "ConfigMap", "web")
	if gone := list(old).Without(list(next)); len(gone) != 0 {
		t.Errorf("%v would be deleted", gone)
	}
	if all := list(next).Union(list(old, other)); len(all) != 2 || !all.Has(old) || !all.Has(other) || all[0].Version != "v2" {
		t.Errorf("union %v", all)
	}
	if list(next).Same(list(old)) {
		t.Error("the stored version would stay the old one")
	}
	if gone := list(old, other).Without(list(next)); len(gone) != 1 || gone[0].Kind != "ConfigMap" {
		t.Errorf("deleted %v", gone)
	}
}

func TestList_Format(t *testing.T) {
	text, err := list(id("apps", "v1", "Deployment", "web")).Format()
	if want := `[{"ordinal":0,"group":"apps","version":"v1","kind":"Deployment","namespace":"shop","name":"web"}]`; err != nil || text != want {
		t.Errorf("%s, %v", text, err)
	}
	back, err := contained.Parse(text)
	if err != nil || len(back) != 1 || back[0].ID() != id("apps", "v1", "Deployment", "web") {
		t.Errorf("%v, %v", back, err)
	}
	var many []render.ID
	for range 1000 {
		many = append(many, id("apps", "v1", "Deployment", strings.Repeat("w", 240)))
	}
	if _, err := list(many...).Format(); err == nil || !strings.Contains(err.Error(), "1000 objects") {
		t.Errorf("no error for a list that Kubernetes refuses: %v", err)
	}
	if _, err := contained.Parse("{"); err == nil {
		t.Error("no error")
	}
}
