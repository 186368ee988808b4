package contained_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/controllers/applications/contained"
	"github.com/frond-edge/frond/controllers/applications/render"
)

func object(kind, version, name string) render.Object {
	return render.Object{ID: render.ID{Group: "autoscaling", Kind: kind, Namespace: "n", Name: name}, Version: version}
}

func listOf(objects ...render.Object) contained.List {
	return contained.Of(objects)
}

// TestList_OtherVersionIsTheSameObject: a manifest that moves from v1 to v2 must not have its object deleted.
func TestList_OtherVersionIsTheSameObject(t *testing.T) {
	before, now := listOf(object("Scaler", "v1", "a"), object("Scaler", "v1", "b")), listOf(object("Scaler", "v2", "a"))
	if gone := before.Without(now); len(gone) != 1 || gone[0].Name != "b" {
		t.Errorf("no longer wanted: %+v", gone)
	}
	if all := now.Union(before); len(all) != 2 || all[0].Version != "v2" {
		t.Errorf("union %+v", all)
	}
	if !before.Same(listOf(object("Scaler", "v2", "a"), object("Scaler", "v2", "b"))) || before.Same(now) {
		t.Error("lists are compared wrongly")
	}
}

func TestParse(t *testing.T) {
	list, err := contained.Parse(`[{"ordinal":3,"group":"apps","version":"v1","kind":"Deployment","resource":"deployments","namespace":"n","name":"a"}]`)
	if err != nil || len(list) != 1 || list[0].ID() != (render.ID{Group: "apps", Kind: "Deployment", Namespace: "n", Name: "a"}) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := contained.Parse(""); err != nil || list != nil {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := contained.Parse("{"); err == nil || !strings.Contains(err.Error(), contained.Annotation) {
		t.Errorf("got %v", err)
	}
}

func TestList_Format(t *testing.T) {
	text, err := listOf(object("Scaler", "v1", "a")).Format()
	if want := `[{"ordinal":0,"group":"autoscaling","version":"v1","kind":"Scaler","namespace":"n","name":"a"}]`; err != nil || text != want {
		t.Errorf("%s, %v", text, err)
	}
	var many []render.Object
	for range 1000 {
		many = append(many, object("Scaler", "v1", strings.Repeat("w", 240)))
	}
	if _, err := listOf(many...).Format(); err == nil || !strings.Contains(err.Error(), "1000 objects") {
		t.Errorf("no error for a list that Kubernetes refuses: %v", err)
	}
}
