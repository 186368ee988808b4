package outbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/frond-edge/frond/streams/subject"
)

// TrimEvents drops the oldest events that wait for the link until keep are left, and returns how many it dropped. It never drops reports
// of state: of each object only the last one waits.
func (o *Outbox) TrimEvents(ctx context.Context, keep uint64) (dropped uint64, err error) {
	stream, err := o.js.Stream(ctx, subject.OutboxEventsStream)
	if err != nil {
		return 0, fmt.Errorf("trim events: %w", err)
	}
	if stream.CachedInfo().State.Msgs <= keep {
		return 0, nil
	}
	request, err := json.Marshal(map[string]uint64{"keep": keep})
	if err != nil {
		return 0, fmt.Errorf("trim events: %w", err)
	}
	// The library's purge does not return the number of purged messages.
	reply, err := o.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.PURGE."+subject.OutboxEventsStream, request)
	if err != nil {
		return 0, fmt.Errorf("trim events: %w", err)
	}
	var answer struct {
		Purged uint64 `json:"purged"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, fmt.Errorf("trim events: %w", err)
	}
	if answer.Error != nil {
		return 0, fmt.Errorf("trim events: %s", answer.Error.Description)
	}
	return answer.Purged, nil
}
