// Package partitions keeps cloudcores and the hub's servers of one opinion about the hub's layout, and the leaders of the partitions spread
// over the servers.
//
// A cloudcore with another layout than the streams were built for would publish for nodes where they do not look. So the layout is recorded
// in the hub with the streams, and a cloudcore that is configured for another one does not run.
package partitions

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// recordKey of the registry bucket stores the layout that the streams were built for.
const recordKey = "layout"

// ErrOther reports a hub with another layout than this cloudcore's.
var ErrOther = errors.New("the hub has another layout than identity.cells and identity.partitions of this cloudcore: see docs/operations/partitions.md")

// Agree checks that the hub's servers and streams have the layout, and records it on a new hub. It must precede the creation of the streams.
// ErrOther is final; after any other error it may be called again.
func Agree(ctx context.Context, nc *nats.Conn, registry jetstream.KeyValue, layout subject.Layout) error {
	if err := AskServer(ctx, nc, layout); err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("layout: %w", err)
	}
	err = checkRecord(ctx, registry, layout)
	if !errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	first := layout
	switch _, err := js.Stream(ctx, subject.DesiredStream); {
	case err == nil: // built by a version that knew one partition and no record
		first.Partitions = 1
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("read stream %s: %w", subject.DesiredStream, err)
	}
	if _, err := registry.Create(ctx, recordKey, []byte(first.String())); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("record the layout: %w", err)
	}
	return checkRecord(ctx, registry, layout)
}

// checkRecord compares the recorded layout.
func checkRecord(ctx context.Context, registry jetstream.KeyValue, layout subject.Layout) error {
	entry, err := registry.Get(ctx, recordKey)
	if err != nil {
		return fmt.Errorf("read the recorded layout: %w", err)
	}
	if text := string(entry.Value()); text != layout.String() {
		return fmt.Errorf("%w: its streams were built for %.60q, this cloudcore has %q", ErrOther, text, layout)
	}
	return nil
}

// AskServer checks that the server of the connection maps the nodes of each cell to the partition that the layout says.
func AskServer(ctx context.Context, nc *nats.Conn, layout subject.Layout) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	token := rand.Text()
	answers := make(chan *nats.Msg, 1) // one question, one answer
	for _, name := range []string{subject.LayoutQuestion(token), subject.LayoutQuestion(token) + ".>"} {
		sub, err := nc.ChanSubscribe(name, answers)
		if err != nil {
			return fmt.Errorf("ask the hub for its layout: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	}
	if err := nc.Publish(subject.LayoutQuestion(token), nil); err != nil {
		return fmt.Errorf("ask the hub for its layout: %w", err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("ask the hub for its layout: %w", ctx.Err())
	case answer := <-answers:
		told, complete, err := subject.ParseLayoutAnswer(answer.Subject, token)
		if err != nil {
			return err
		}
		if !complete {
			told.Cells = layout.Cells
		}
		if told.String() != layout.String() {
			return fmt.Errorf("%w: server %s is configured for %q, this cloudcore for %q", ErrOther, nc.ConnectedServerName(), told, layout)
		}
		return nil
	}
}

// answerTimeout bounds one question; a server answers it by itself, at once.
const answerTimeout = topology.StepTimeout

// period is how often the layout and the leaders are looked at. An election takes 4 to 9 s, so two looks in a row see the same leaders only
// if none is going on.
const period = 10 * time.Second
