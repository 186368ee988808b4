package controllers_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/controllers"
)

// Each event of the kind is passed on, a missed deletion with the last known version, and no object of another kind.
func TestTypedHandler_PassesEventsOfItsKind(t *testing.T) {
	var events []string
	handler := controllers.TypedHandler(
		func(n *corev1.Node) { events = append(events, "changed "+n.Name+" "+n.ResourceVersion) },
		func(n *corev1.Node) { events = append(events, "deleted "+n.Name+" "+n.ResourceVersion) })
	node := func(version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version}}
	}
	handler.OnAdd(node("1"), true)
	handler.OnUpdate(node("1"), node("2"))
	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "a", Obj: node("2")})
	handler.OnAdd(&corev1.Pod{}, false)
	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "b"})
	if want := []string{"changed a 1", "changed a 2", "deleted a 2"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	controllers.TypedHandler[*corev1.Node](func(*corev1.Node) {}, nil).OnDelete(node("3")) // nobody is called
}
