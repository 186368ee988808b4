package cloud

import (
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/controllers/groups"
	"github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// buildGroups creates the view of who is in which NodeGroup, for all that decide by it, and the controller that carries the groups out.
func buildGroups(f *foundation) (*membership.View, []lifecycle.Part, error) {
	client, err := membership.NewGroupClient(f.clients.Config)
	if err != nil {
		return nil, nil, err
	}
	view := membership.New(f.objects, membership.ListGroups(client), f.log.Named("groups"))
	controller := groups.New(groupGuard(f.cfg.DeletionGuard), f.clients.Own, client, f.objects, view, f.members, f.events.RecordEvent, f.registry, f.log.Named("groups"))
	return view, []lifecycle.Part{
		{Name: "membership", Start: view.Start},
		{Name: "groups", Start: controller.Start},
	}, nil
}

func groupGuard(g config.DeletionGuard) groups.Guard {
	guard := groups.Guard{Minimum: g.Minimum, After: time.Duration(g.After)}
	if g.Share != nil {
		guard.Share = *g.Share
	}
	return guard
}
