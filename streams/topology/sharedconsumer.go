package topology

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/internal/flow"
)

// codeConsumerExists is nats-server's refusal of a second unfiltered consumer on a work queue (server/errors.json).
const codeConsumerExists jetstream.ErrorCode = 10099

// ensureSharedConsumer creates the shared consumer, or updates the existing one. Processes that do so at once agree on one consumer,
// because a work queue admits no second: a process that is refused looks the consumer up again.
func ensureSharedConsumer(ctx context.Context, js jetstream.JetStream, c Consumer) error {
	retry := flow.NewRetryBackoff()
	for {
		err := RetryUnanswered(ctx, func(ctx context.Context) error { return upsertSharedConsumer(ctx, js, c) })
		if !isConsumerRace(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retry.Step()):
		}
	}
}

// isConsumerRace reports whether another process has created or deleted a consumer meanwhile.
func isConsumerRace(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == codeConsumerExists || errors.Is(err, jetstream.ErrConsumerDoesNotExist) || errors.Is(err, jetstream.ErrConsumerNotFound)
}

// upsertSharedConsumer makes one attempt. A consumer with the plain name comes from a version before names were random. It is replaced;
// the messages that it had delivered are delivered again.
func upsertSharedConsumer(ctx context.Context, js jetstream.JetStream, c Consumer) error {
	names, err := listConsumerNames(ctx, js, c.Stream)
	if err != nil {
		return err
	}
	cfg := c.Config
	if name := findRandomName(names, cfg.Durable); name != "" {
		cfg.Durable = name
		_, err := js.UpdateConsumer(ctx, c.Stream, cfg)
		return err
	}
	for _, name := range names {
		if name != cfg.Durable {
			return fmt.Errorf("consumer %s is in the way, which Frond has not made", name)
		}
		if err := js.DeleteConsumer(ctx, c.Stream, name); err != nil {
			return err
		}
	}
	cfg.Durable += randomNameSeparator + rand.Text()
	_, err = js.CreateConsumer(ctx, c.Stream, cfg)
	return err
}

// FindCloudConsumer returns the consumer that all cloudcores share on a stream.
func FindCloudConsumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
	names, err := listConsumerNames(ctx, js, stream)
	if err != nil {
		return nil, err
	}
	name := findRandomName(names, cloudConsumer)
	if name == "" {
		return nil, jetstream.ErrConsumerNotFound
	}
	return js.Consumer(ctx, stream, name)
}

// randomNameSeparator separates the prefix of a consumer's name from its random part.
const randomNameSeparator = "-"

// findRandomName returns one of several names, the same for every process, or "".
func findRandomName(names []string, prefix string) string {
	for _, name := range slices.Sorted(slices.Values(names)) {
		if strings.HasPrefix(name, prefix+randomNameSeparator) {
			return name
		}
	}
	return ""
}

// listConsumerNames lists the consumers of a stream.
func listConsumerNames(ctx context.Context, js jetstream.JetStream, stream string) ([]string, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	lister := s.ConsumerNames(ctx)
	var names []string
	for name := range lister.Name() {
		names = append(names, name)
	}
	return names, lister.Err()
}
