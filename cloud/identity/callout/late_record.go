package callout

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/identity"
)

const (
	// recordWait is how long a link of a gateway waits for its record, which another replica may have just written. A watch delivers it within
	// milliseconds, and with an apiserver that is busy within some hundred. A refused gateway dials again after 2 s at the earliest.
	recordWait = time.Second
	// maxRecordWaits bounds the links that wait, as anybody can make a key. Further ones are refused at once.
	maxRecordWaits = 256
)

// recordWaits holds requests about gateways whose record this replica may not have received yet.
type recordWaits struct {
	records Records
	metrics *Metrics
	// queue takes a request again when its record has come, or is not awaited any longer.
	queue chan<- queuedRequest
	// group runs one goroutine for each waiting request; slots has room for maxRecordWaits.
	group *errgroup.Group
	slots chan struct{}
}

func newRecordWaits(records Records, metrics *Metrics, queue chan<- queuedRequest, group *errgroup.Group) *recordWaits {
	return &recordWaits{records: records, metrics: metrics, queue: queue, group: group, slots: make(chan struct{}, maxRecordWaits)}
}

// hold takes a refused request if its record may be on its way: a gateway that has enrolled shows its key alone. It returns false if the
// refusal stands.
func (w *recordWaits) hold(ctx context.Context, request queuedRequest, a attempt, reason identity.Reason) bool {
	if request.waited || a.credential.Token != "" || reason != identity.ReasonUnknown && reason != identity.ReasonOtherKey {
		return false
	}
	select {
	case w.slots <- struct{}{}:
	default:
		return false
	}
	w.group.Go(func() error {
		defer func() { <-w.slots }()
		wctx, cancel := context.WithTimeout(ctx, recordWait)
		defer cancel()
		w.records.AwaitKey(wctx, a.credential.Node, a.credential.Key)
		w.metrics.countWait(wctx.Err() == nil)
		request.waited = true
		select {
		case <-ctx.Done():
		case w.queue <- request:
		}
		return nil
	})
	return true
}
