package streams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// codeConsumerExists is nats-server's refusal of a second consumer of all of a work queue (server/errors.json).
const codeConsumerExists jetstream.ErrorCode = 10099

// ensureSharedConsumer makes a hidden consumer, or brings the one that is there up to date. Processes that do so at once settle on one,
// as a work queue takes no second: who is refused looks again.
func ensureSharedConsumer(ctx context.Context, js jetstream.JetStream, c Consumer) error {
	retry := newRetryBackoff()
	for {
		err := retryUnanswered(ctx, func(ctx context.Context) error { return upsertSharedConsumer(ctx, js, c) })
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

// isConsumerRace tells that another process has made or deleted a consumer meanwhile.
func isConsumerRace(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == codeConsumerExists || errors.Is(err, jetstream.ErrConsumerDoesNotExist) || errors.Is(err, jetstream.ErrConsumerNotFound)
}

// upsertSharedConsumer makes one try. A consumer with the plain name is of a version before names were hidden. It is replaced: what it had
// delivered is delivered again.
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

// findCloudConsumer finds the consumer that all cloudcores share on a stream.
func findCloudConsumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
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

// randomNameSeparator stands between what a hidden consumer is and what nobody guesses.
const randomNameSeparator = "-"

// findRandomName returns the same one of several names to everybody, or "".
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
