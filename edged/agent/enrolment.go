package agent

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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
)

const (
	// A node that has just registered gets its condition after one more of these intervals; a check costs a comparison.
	identityCheckInterval = 10 * time.Second
)

// loadIdentity returns the leaf's configuration for the hub, with the node's own key. A node whose identity is damaged runs
// the content of its store without a link.
func (n *Node) loadIdentity() (leaf.Config, error) {
	hub := n.cfg.Hub
	keeper, err := enroll.New(enroll.Config{
		Node: n.cfg.Node, Dir: filepath.Join(n.cfg.Dir, "identity"), Hub: hub.URLs, TokenFile: hub.TokenFile, CAHashes: hub.CAHashes,
		Proxy: n.proxy, Metrics: n.metrics,
	}, n.log)
	switch {
	case errors.Is(err, identitydir.ErrDamaged):
		n.log.Error("this gateway has lost its identity, and runs without a link", zap.Error(err))
		n.identityErr = err
		return leaf.Config{}, nil
	case err != nil: // another name, or a fault that may be gone at the next start
		return leaf.Config{}, err
	}
	var way leaf.Config
	n.renewer = keeper
	keeper.ConfigureLeaf(&way)
	return way, nil
}

// identityPart returns the part that enrols the node and renews its key. Other parts wait for the enrolment only on a node
// whose store is still empty.
func (n *Node) identityPart() lifecycle.Part {
	part := lifecycle.Part{Name: "identity", Start: func(ctx context.Context) error { return n.renewer.Start(ctx, n.leaf) }}
	if _, err := os.Stat(n.highWaterFile()); err != nil {
		part.Ready = n.renewer.Enrolled()
	}
	return part
}

// clusterCAFile holds the CAs of clients that may call the kubelet, as sent by the cloud; "" before that.
func (n *Node) clusterCAFile() string {
	if n.renewer == nil {
		return ""
	}
	if _, err := os.Stat(n.renewer.ClusterCA()); err != nil {
		return ""
	}
	return n.renewer.ClusterCA()
}

// hubCAFile holds the hub's CAs, if they are known.
func (n *Node) hubCAFile() string {
	if n.renewer == nil {
		return ""
	}
	return n.renewer.HubCA()
}

// cloudNow returns the cloud's time, as far as this node knows it.
func (n *Node) cloudNow() time.Time {
	if n.renewer == nil {
		return time.Now()
	}
	return n.renewer.Now()
}

// enrolmentChecks returns the check of /readyz.
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

// keyCondition returns the content of the condition. refused is the reason why the cloud does not renew the key, if it sent one.
func keyCondition(r identitydir.Record, refused string, now time.Time) (status corev1.ConditionStatus, reason, message string) {
	until := r.Expires.UTC().Format(time.RFC3339)
	switch {
	case r.Key == "":
		return corev1.ConditionFalse, names.ReasonNotEnrolled, "this gateway is not enrolled: frond join, or a token in hub.tokenFile"
	case refused != "":
		return corev1.ConditionFalse, names.ReasonKeyNotRenewed, refused
	case now.After(r.Expires):
		return corev1.ConditionFalse, names.ReasonKeyExpired, fmt.Sprintf("the key expired on %s; it is renewed with the next link, within the cloud's window", until)
	default:
		return corev1.ConditionTrue, names.ReasonKeyValid, fmt.Sprintf("the key is good until %s and renewed before", until)
	}
}

// identityConditionParts returns the part that updates the condition, if there is an identity.
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
			if err := ensureCondition(ctx, client, n.cfg.Node, names.ConditionIdentity, status, reason, message); err != nil {
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

// ensureCondition writes a condition unless the Node, which may have been created anew, has it.
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
