package devices

import (
	"context"

	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
	"github.com/frond-edge/frond/leaf/store"
)

// Authorize asks whether a pod may serve a protocol.
func Authorize(ctx context.Context, st *store.Store, allowed []config.Mapper, pod, protocol string) error {
	return authorizer{st, allowed}.Authorize(ctx, peer.Peer{Pod: types.UID(pod)}, protocol)
}

// Hash returns the cheapest hash of a password.
func Hash(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	return string(hash), err
}

// Answers returns the queue of answers to an external broker.
func Answers(send func(ctx context.Context, topic string, payload []byte) error, lost func(), log *zap.Logger) (
	enqueue func(broker.Message) error, start func(ctx context.Context),
) {
	a := newAnswers(send, lost, log)
	return a.enqueue, a.start
}
