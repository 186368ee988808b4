// Package sessions forgets MQTT sessions that would be deaf.
//
// nats-server keeps an app's session in the stream $MQTT_sess, and what the app subscribed with QoS 1 or 2 in a consumer each. It removes the consumers of
// an app that was away for longer than their inactive threshold, and a power cut can lose any of them, but a session that it resumes is not checked:
// the app is told that its subscriptions are there, and never gets a message. Without the session the app is told so, and subscribes anew.
package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// The streams and subjects of nats-server's MQTT (server/mqtt.go).
const (
	sessionsStream = "$MQTT_sess"
	messagesStream = "$MQTT_msgs"
	outStream      = "$MQTT_out"
	sessionSubject = "$MQTT.sess."
	// takenSubject is where the servers of a cluster tell each other that an app has connected elsewhere: the others drop its session from their memory.
	takenSubject = "$MQTT.JSA.frond.SP."
	// outPrefix begins the name of an app's consumer of outStream. Those of messagesStream are named after the app's hash and an underscore.
	outPrefix = "$MQTT_PUBREL_"
)

// checkTimeout limits a check: the app waits for it to connect.
const checkTimeout = 5 * time.Second

// Checker checks sessions over the gateway's own connection to the broker.
type Checker struct {
	js  jetstream.JetStream
	log *zap.Logger
}

// NewChecker returns a Checker.
func NewChecker(js jetstream.JetStream, log *zap.Logger) *Checker {
	return &Checker{js: js, log: log}
}

// session is what nats-server stores of one.
type session struct {
	ID string `json:"id"`
	// Subscriptions has the QoS of each filter.
	Subscriptions map[string]byte      `json:"subs"`
	Consumers     map[string]*consumer `json:"cons"`
	Out           *consumer            `json:"pubrel"`
}

type consumer struct {
	Name string `json:"durable_name"`
}

// Check forgets the session of an app if it has no subscription, if one of its consumers is gone, or if it cannot be read. It is called before nats-server resumes the session. After an error
// the session is as it was.
func (c *Checker) Check(ctx context.Context, clientID string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	hash := hashOf(clientID)
	stream, err := c.js.Stream(ctx, sessionsStream)
	if err != nil {
		return fmt.Errorf("MQTT sessions: %w", err)
	}
	m, err := stream.GetLastMsgForSubject(ctx, sessionSubject+hash)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("MQTT session of %q: %w", clientID, err)
	}
	var s session
	if err := json.Unmarshal(m.Data, &s); err != nil {
		c.log.Warn("an MQTT session is damaged and forgotten", zap.String("client", clientID), zap.Error(err))
		if s, err = c.namedAfter(ctx, hash); err != nil {
			return fmt.Errorf("consumers of the damaged MQTT session of %q: %w", clientID, err)
		}
	} else if s.ID != clientID {
		return nil // nats-server refuses the app
	} else if whole, err := c.isWhole(ctx, s); err != nil || whole {
		return err
	}
	if err := c.forget(ctx, stream, hash, m.Sequence, s); err != nil {
		return fmt.Errorf("forget the MQTT session of %q: %w", clientID, err)
	}
	if len(s.Subscriptions) > 0 {
		c.log.Info("an MQTT session has lost subscriptions and is forgotten", zap.String("client", clientID))
	} else {
		c.log.Debug("an MQTT session without subscriptions is forgotten", zap.String("client", clientID))
	}
	return nil
}

// isWhole reports whether a session has subscriptions, and all their consumers are there. nats-server stores a session at the connect and again with what the
// app subscribes then; a power cut can take the second.
func (c *Checker) isWhole(ctx context.Context, s session) (bool, error) {
	if len(s.Subscriptions) == 0 {
		return false, nil
	}
	for _, one := range s.Consumers {
		if there, err := c.has(ctx, messagesStream, one); err != nil || !there {
			return false, err
		}
	}
	return c.has(ctx, outStream, s.Out)
}

func (c *Checker) has(ctx context.Context, stream string, one *consumer) (bool, error) {
	if one == nil {
		return true, nil
	}
	_, err := c.js.PushConsumer(ctx, stream, one.Name)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("consumer %s: %w", one.Name, err)
	}
	return true, nil
}

// namedAfter returns a session with the consumers that belong to a client by their names: its record, which cannot be read, does not tell them.
func (c *Checker) namedAfter(ctx context.Context, hash string) (session, error) {
	s := session{Consumers: map[string]*consumer{}, Out: &consumer{outPrefix + hash}}
	stream, err := c.js.Stream(ctx, messagesStream)
	if err != nil {
		return s, err
	}
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		if strings.HasPrefix(name, hash+"_") {
			s.Consumers[name] = &consumer{name}
		}
	}
	return s, names.Err()
}

// forget removes a session with what is left of its consumers, also from nats-server's memory.
func (c *Checker) forget(ctx context.Context, stream jetstream.Stream, hash string, sequence uint64, s session) error {
	for _, one := range s.Consumers {
		if err := c.remove(ctx, messagesStream, one); err != nil {
			return err
		}
	}
	if err := c.remove(ctx, outStream, s.Out); err != nil {
		return err
	}
	if err := stream.DeleteMsg(ctx, sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	ack, err := json.Marshal(jetstream.PubAck{Stream: sessionsStream, Sequence: sequence})
	if err != nil {
		return err
	}
	if err := c.js.Conn().Publish(takenSubject+hash+".1", ack); err != nil {
		return err
	}
	return c.js.Conn().FlushWithContext(ctx) // the server has handled it
}

func (c *Checker) remove(ctx context.Context, stream string, one *consumer) error {
	if one == nil {
		return nil
	}
	err := c.js.DeleteConsumer(ctx, stream, one.Name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("consumer %s: %w", one.Name, err)
	}
	return nil
}

// hashOf is nats-server's hash of a client id.
func hashOf(clientID string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(clientID))
	var hash [8]byte
	for i := range hash {
		hash[i] = digits[int(sum[i])%len(digits)]
	}
	return string(hash[:])
}
