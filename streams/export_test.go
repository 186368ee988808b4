package streams

import (
	"context"
	"time"
)

// Refusals is what Reports remembers of refused reports.
type Refusals struct{ *refusals }

func NewRefusals(total int) Refusals { return Refusals{newRefusals(total)} }

func (r Refusals) Note(node, subject string, now time.Time) error { return r.note(node, subject, now) }
func (r Refusals) Settle(node, subject string)                    { r.settle(node, subject) }

// Look lets a Keeper look once at a hub whose topology is in place.
func (k *Keeper) Look(ctx context.Context) error {
	ensured := true
	return k.look(ctx, &ensured)
}

// Note gives a Keeper one look at the stream.
func (k *Keeper) Note(epoch string, last uint64) { k.note(epoch, last) }
