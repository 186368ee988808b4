package edgenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/internal/enrol"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
)

const (
	// identityCondition tells on the Node how long the gateway's key is good.
	identityCondition = "EdgeIdentity"
	// A node that has just registered has its condition after one more of these; it costs a comparison.
	identityCheckInterval = 10 * time.Second
)

// loadIdentity is the leaf's way to the hub, by the node's own key. A node whose identity is damaged runs without a link what its store
// holds.
func (n *Node) loadIdentity() (leaf.Config, error) {
	hub := n.cfg.Hub
	keeper, err := enrol.New(enrol.Config{
		Node: n.cfg.Node, Dir: filepath.Join(n.cfg.Dir, "identity"), Hub: hub.URLs, TokenFile: hub.TokenFile, CAHashes: hub.CAHashes,
		Proxy: n.proxy, Metrics: n.metrics,
	}, n.log)
	switch {
	case errors.Is(err, enrol.ErrDamaged):
		n.log.Error("this gateway has lost its identity, and runs without a link", zap.Error(err))
		n.identityErr = err
		return leaf.Config{}, nil
	case err != nil: // another name, or a fault that may be over at the next start
		return leaf.Config{}, err
	}
	var way leaf.Config
	n.renewer = keeper
	keeper.ConfigureLeaf(&way)
	return way, nil
}

// identityPart is the part that enrols the node and renews its key. Others wait for the enrolment only on a node that has nothing to
// run yet.
func (n *Node) identityPart() lifecycle.Part {
	part := lifecycle.Part{Name: "identity", Start: func(ctx context.Context) error { return n.renewer.Start(ctx, n.leaf) }}
	if _, err := os.Stat(n.highWaterFile()); err != nil {
		part.Ready = n.renewer.Enrolled()
	}
	return part
}

// clusterCAFile is who may call the kubelet, as the cloud said; "" before it has.
func (n *Node) clusterCAFile() string {
	if n.renewer == nil {
		return ""
	}
	if _, err := os.Stat(n.renewer.ClusterCA()); err != nil {
		return ""
	}
	return n.renewer.ClusterCA()
}

// hubCAFile is where the hub's authorities are, in case they are known.
func (n *Node) hubCAFile() string {
	if n.renewer == nil {
		return ""
	}
	return n.renewer.HubCA()
}

// cloudNow is the cloud's time, as far as this node knows it.
func (n *Node) cloudNow() time.Time {
	if n.renewer == nil {
		return time.Now()
	}
	return n.renewer.Now()
}

// enrolmentChecks is the check of /readyz.
func (n *Node) enrolmentChecks() []health.Check {
	if n.identityErr != nil {
		return []health.Check{{Name: "enrolment", Ready: func() error { return n.identityErr }}}
	}
	if n.renewer == nil {
		return nil
	}
	return []health.Check{{Name: "enrolment", Ready: func() error {
		if status, _, message := keyCondition(n.renewer.Record(), n.renewer.Refused(), n.renewer.Now()); status != corev1.ConditionTrue {
			return errors.New(message)
		}
		return nil
	}}}
}

// keyCondition is what the condition says. refused is why the cloud does not renew the key, if it said so.
func keyCondition(r enrol.Record, refused string, now time.Time) (status corev1.ConditionStatus, reason, message string) {
	until := r.Expires.UTC().Format(time.RFC3339)
	switch {
	case r.Key == "":
		return corev1.ConditionFalse, "NotEnrolled", "this gateway is not enrolled: frond join, or a token in hub.tokenFile"
	case refused != "":
		return corev1.ConditionFalse, "KeyNotRenewed", refused
	case now.After(r.Expires):
		return corev1.ConditionFalse, "KeyExpired", fmt.Sprintf("the key expired on %s; it is renewed with the next link, within the cloud's window", until)
	default:
		return corev1.ConditionTrue, "KeyValid", fmt.Sprintf("the key is good until %s and renewed before", until)
	}
}

// identityConditionParts is the part that keeps the condition, if there is an identity.
func (n *Node) identityConditionParts(client kubernetes.Interface) []lifecycle.Part {
	if n.renewer == nil {
		return nil
	}
	log := n.log.Named("identity")
	return []lifecycle.Part{{Name: "identity condition", Start: func(ctx context.Context) error {
		tick := time.NewTicker(identityCheckInterval)
		defer tick.Stop()
		for {
			status, reason, message := keyCondition(n.renewer.Record(), n.renewer.Refused(), n.renewer.Now())
			if err := ensureCondition(ctx, client, n.cfg.Node, identityCondition, status, reason, message); err != nil {
				log.Debug("condition not written", zap.String("reason", reason), zap.Error(err))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}}}
}

// ensureCondition writes a condition unless the Node, which may have been made anew, has it.
func ensureCondition(ctx context.Context, client kubernetes.Interface, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) error {
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range object.Status.Conditions {
		if c.Type == kind && c.Status == status && c.Reason == reason && c.Message == message {
			return nil
		}
	}
	return writeCondition(ctx, client, node, kind, status, reason, message)
}
