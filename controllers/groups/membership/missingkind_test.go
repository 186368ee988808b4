package membership

import (
	"testing"

	"go.uber.org/zap/zaptest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/apps"
)

// TestView_NotFoundForgetsNothing: a list that is not found says that the kind is missing only where no group was ever known. A proxy in front of the
// apiserver answers so, too, and the groups must not be gone for that.
func TestView_NotFoundForgetsNothing(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Group: apps.Group, Resource: apps.NodeGroupsResource}, "")
	fresh := New(nil, nil, zaptest.NewLogger(t))
	fresh.onGroupsError(t.Context(), nil, notFound)
	if fresh.Installed() || len(fresh.Groups()) != 0 {
		t.Error("without groups the kind is not missing")
	}
	v := New(nil, nil, zaptest.NewLogger(t))
	v.onGroupChanged(&apps.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "north"}})
	v.onGroupsError(t.Context(), nil, notFound)
	if !v.Installed() || len(v.Groups()) != 1 {
		t.Errorf("installed %t, %d groups", v.Installed(), len(v.Groups()))
	}
}
