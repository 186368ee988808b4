package localapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// checkKindDelivered returns the cloud's announcement about an optional kind. The error is a status: the cluster does not
// have the kind, or the cloud has not announced whether it sends it.
func (s *Server) checkKindDelivered(r *kinds.Resource) error {
	unknown := func(why string) error {
		return respond.RetryLater(fmt.Sprintf("%s are not known on this gateway: %s", r.GVR.GroupResource(), why))
	}
	entry, err := s.store.Get(wire.DeliveredKindsKey())
	if err != nil {
		return unknown("the cloud has not said that it sends them; an older cloudcore does not")
	}
	var kinds wire.DeliveredKinds
	if err := json.Unmarshal(entry.Object, &kinds); err != nil {
		return unknown("what the cloud says of its kinds is not readable")
	}
	k, ok := kinds.Find(r.GVR.Group, r.GVR.Resource)
	switch {
	case !ok:
		return unknown("the cloud does not know yet whether its Kubernetes serves them")
	case k.Version != "":
		return nil
	case k.Absence == wire.KindForbidden:
		return unknown("cloudcore may not read them; apply its roles (deploy/rbac)")
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", r.GVR.GroupResource(), "",
		"the Kubernetes of this gateway does not serve them in any version that the gateway knows", 0, false)
}
