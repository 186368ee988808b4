package inspect

import (
	"time"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/wire"
)

// Tally works out the progress of what was read.
func Tally(heard *inspect.Heard, consumer *inspect.Consumer, epoch string, marker uint64, all int, missing func(after uint64) int, oldest time.Time) inspect.Progress {
	t := tally{heard: heard, consumer: consumer, epoch: epoch, marker: marker, all: all, oldest: oldest}
	if t.sequence, t.by = t.cursor(); t.by != "" {
		t.missing = missing(t.sequence)
	}
	return t.progress()
}

// Beats is the memory of heartbeats.
type Beats struct{ b beats }

func NewBeats() *Beats { return &Beats{beats{nodes: map[string]*heard{}}} }

func (b *Beats) Note(node string, beat wire.Beat, now time.Time) { b.b.note(node, beat, now) }
func (b *Beats) Passed(node string, sequence uint64) time.Time   { return b.b.passed(node, sequence) }
func (b *Beats) Last(node string) *inspect.Heard                 { return b.b.last(node) }
func (b *Beats) Keep(exists func(string) bool)                   { b.b.keep(exists) }
