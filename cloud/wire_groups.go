package cloud

import (
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/controllers/groups"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// buildGroups creates the controller that carries the groups out.
func buildGroups(f *foundation) lifecycle.Part {
	controller := groups.New(groupGuard(f.cfg.DeletionGuard), f.clients.Own, f.groupClient, f.objects, f.groups, f.members, f.events.RecordEvent, f.registry, f.log.Named("groups"))
	return lifecycle.Part{Name: "groups", Start: controller.Start}
}

func groupGuard(g config.DeletionGuard) groups.Guard {
	guard := groups.Guard{Minimum: g.Minimum, After: time.Duration(g.After)}
	if g.Share != nil {
		guard.Share = *g.Share
	}
	return guard
}
