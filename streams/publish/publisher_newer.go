package publish

import (
	"context"
	"fmt"

	"github.com/frond-edge/frond/streams/subject"
)

// Newer reports whether the stream holds a message for a node after a sequence. It costs one small request. The replica that answers may
// lag, so Newer may miss a message that was just stored.
func (p *Publisher) Newer(ctx context.Context, node string, sequence uint64) (bool, error) {
	page, err := p.streams.reader(node).ReadPage(ctx, subject.Filter(subject.Desired, node), sequence+1, 1, 1)
	if err != nil {
		return false, fmt.Errorf("look for what is newer for %s: %w", node, err)
	}
	return len(page.Messages) > 0, nil
}
