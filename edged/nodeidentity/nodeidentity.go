// Package nodeidentity holds the identity with which an agent runs: its key for the hub, or the reason why it has none.
//
// A node whose identity is damaged runs the content of its store without a link. Package enroll obtains and renews the key; this
// package loads it, gives its files and time to others, and shows its state in the condition EdgeIdentity of the Node and on /readyz.
package nodeidentity

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/leaf"
)

// Identity is the identity of a running node.
type Identity struct {
	renewer *enroll.Renewer // nil if the identity is damaged
	damage  error           // nil if it is not
}

// Load reads the identity of a node. A damaged one is no error.
func Load(cfg enroll.Config, log *zap.Logger) (*Identity, error) {
	renewer, err := enroll.New(cfg, log)
	switch {
	case errors.Is(err, identitydir.ErrDamaged):
		log.Error("this gateway has lost its identity, and runs without a link", zap.Error(err))
		return &Identity{damage: err}, nil
	case err != nil: // another name, or a fault that may be gone at the next start
		return nil, err
	}
	return &Identity{renewer: renewer}, nil
}

// Renewer enrols the node and renews its key; nil if the identity is damaged.
func (i *Identity) Renewer() *enroll.Renewer { return i.renewer }

// LeafConfig returns the leaf's configuration for the hub, with the node's own key.
func (i *Identity) LeafConfig() (cfg leaf.Config) {
	if i.renewer != nil {
		i.renewer.ConfigureLeaf(&cfg)
	}
	return cfg
}

// ClusterCAFile holds the CAs of clients that may call the kubelet, as sent by the cloud; "" before that.
func (i *Identity) ClusterCAFile() string {
	if i.renewer == nil {
		return ""
	}
	if _, err := os.Stat(i.renewer.ClusterCA()); err != nil {
		return ""
	}
	return i.renewer.ClusterCA()
}

// HubCAFile holds the hub's CAs, if they are known.
func (i *Identity) HubCAFile() string {
	if i.renewer == nil {
		return ""
	}
	return i.renewer.HubCA()
}

// CloudNow returns the cloud's time, as far as this node knows it.
func (i *Identity) CloudNow() time.Time {
	if i.renewer == nil {
		return time.Now()
	}
	return i.renewer.Now()
}

// CheckReady is the check of /readyz.
func (i *Identity) CheckReady() error {
	if i.renewer == nil {
		return i.damage
	}
	if c := i.Condition(); c.Status != corev1.ConditionTrue {
		return errors.New(c.Message)
	}
	return nil
}

// Condition returns the present content of the Node's condition. The identity is not damaged.
func (i *Identity) Condition() corev1.NodeCondition {
	return keyCondition(i.renewer.Record(), i.renewer.Refused(), i.renewer.Now())
}

// keyCondition returns the content of the condition. refused is the reason why the cloud does not renew the key, if it sent one.
func keyCondition(r identitydir.Record, refused string, now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: names.ConditionIdentity, Status: corev1.ConditionFalse}
	until := r.Expires.UTC().Format(time.RFC3339)
	switch {
	case r.Key == "":
		c.Reason, c.Message = names.ReasonNotEnrolled, "this gateway is not enrolled: frond join, or a token in hub.tokenFile"
	case refused != "":
		c.Reason, c.Message = names.ReasonKeyNotRenewed, refused
	case now.After(r.Expires):
		c.Reason, c.Message = names.ReasonKeyExpired, fmt.Sprintf("the key expired on %s; it is renewed with the next link, within the cloud's window", until)
	default:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, names.ReasonKeyValid, fmt.Sprintf("the key is good until %s and renewed before", until)
	}
	return c
}
