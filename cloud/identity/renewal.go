package identity

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/identity"
)

const (
	// renewShare: a renewal is written only after 1/renewShare of the key's lifetime; before that the answer contains what is recorded.
	renewShare = 10
	// renewPause is the minimum time between two changes of a node's key.
	renewPause = 10 * time.Second
)

// renewKey extends a key's lifetime, or records another key that the present one has approved.
func (r *Registrar) renewKey(ctx context.Context, caller string, req identity.RenewRequest) (time.Time, error) {
	own := req.Node
	if !IsNodeName(caller) { // from the lobby
		own = req.Current
	}
	if err := verifyClaim(identity.VerbRenew, caller, req.Node, own, req.Key, req.Signature); err != nil {
		return time.Time{}, err
	}
	if !VerifySignature(req.Current, identity.Proof(identity.VerbRenew, req.Node, req.Key), req.Approval) {
		return time.Time{}, newRefusal(ReasonProof, "the present key has not approved of the request")
	}
	var expires time.Time
	err := retry.OnError(conflictBackoff(), isConflict, func() error {
		object, err := r.readIdentity(ctx, req.Node)
		if err != nil {
			return err
		}
		if err := r.authorizeRenewal(object, req); err != nil {
			return err
		}
		now, spec := r.now(), &object.Spec
		spent := now.Sub(spec.Issued.Time)
		again := req.Key == spec.Key
		switch {
		case again && now.Before(spec.Expires.Time) && spent < r.policy.KeyLifetime/renewShare:
			expires = spec.Expires.Time
			return nil
		case !again && spent < min(renewPause, r.policy.KeyLifetime/renewShare):
			return newRefusal(ReasonSoon, "the key of %s was changed %s ago; try again in %s", req.Node, spent.Round(time.Second), renewPause)
		case !again:
			// A caller with the previous key has lost the answer about the present one.
			spec.Key, spec.Previous = req.Key, req.Current
		}
		r.setLifetime(spec)
		if err := r.objects.Update(ctx, object); err != nil {
			return fmt.Errorf("record the key of %s: %w", req.Node, err)
		}
		expires = spec.Expires.Time
		r.metrics.countKeyChange(identity.VerbRenew)
		r.log.Info("key renewed", zap.String("node", req.Node), zap.String("key", req.Key), zap.Bool("same", again))
		return nil
	})
	return expires, err
}

// authorizeRenewal decides whether the present key may renew.
func (r *Registrar) authorizeRenewal(object *identity.NodeIdentity, req identity.RenewRequest) error {
	advice := fmt.Sprintf("make a token with `frond token create --node %s`, and run `frond reset` and `frond join` with it on the gateway", req.Node)
	if object == nil {
		return newRefusal(ReasonUnknown, "node %s has no identity; %s", req.Node, advice)
	}
	record := recordOf(object)
	switch reason := KeyStatus(record, req.Current, r.isRevoked(object, req.Current), r.now()); reason {
	case "":
	case ReasonExpired:
		if !r.inRenewWindow(record.Expires) {
			return newRefusal(reason, "the key of %s expired on %s, and may be renewed until %s after that; %s", req.Node,
				record.Expires.UTC().Format(time.RFC3339), r.policy.RenewWindow, advice)
		}
	default:
		return newRefusal(reason, "the present key is not node %s (%s); %s", req.Node, reason, advice)
	}
	if r.isRevoked(object, req.Key) {
		return newRefusal(ReasonRevokedKey, "the new key was revoked; make another one")
	}
	if holder := r.records.Holder(req.Key); holder != "" && holder != req.Node {
		return newRefusal(ReasonForeignKey, "the new key is node %s; make another one", holder)
	}
	return nil
}

// KeyConfirmer ends the validity of previous keys: once a node has connected with its newest key, no other key
// authenticates as it. It writes once per change of keys.
type KeyConfirmer struct {
	objects client.Client
	log     *zap.Logger

	mu sync.Mutex
	// pending maps each node to the key that it connected with; guarded by mu.
	pending map[string]string
	wake    chan struct{} // has a buffer of one: an entry was added
}

// NewKeyConfirmer creates a KeyConfirmer.
func NewKeyConfirmer(objects client.Client, log *zap.Logger) *KeyConfirmer {
	return &KeyConfirmer{objects: objects, log: log, pending: make(map[string]string), wake: make(chan struct{}, 1)}
}

// KeySeen records that a node connected with this key, which was its newest one then. It does not block.
func (s *KeyConfirmer) KeySeen(node, key string) {
	s.mu.Lock()
	s.pending[node] = key
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Start writes until ctx ends, and then returns nil. A failed write is repeated at the next link.
func (s *KeyConfirmer) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		s.mu.Lock()
		pending := s.pending
		s.pending = make(map[string]string)
		s.mu.Unlock()
		for node, key := range pending {
			if err := s.clearPrevious(ctx, node, key); err != nil && ctx.Err() == nil {
				s.log.Warn("previous key not ended, tried again at the next link", zap.String("node", node), zap.Error(err))
			}
		}
	}
}

// confirmTimeout bounds one write.
const confirmTimeout = 10 * time.Second

func (s *KeyConfirmer) clearPrevious(ctx context.Context, node, key string) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	object := &identity.NodeIdentity{}
	if err := s.objects.Get(ctx, client.ObjectKey{Name: node}, object); err != nil {
		return err
	}
	if object.Spec.Key != key || object.Spec.Previous == "" {
		return nil // there is another key by now, with which the node has not connected yet
	}
	object.Spec.Previous = ""
	return s.objects.Update(ctx, object)
}
