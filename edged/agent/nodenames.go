package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// namesMinBackoff and namesMaxBackoff limit the pause after an answer without a name; namesInterval is the one after one with it.
	namesMinBackoff, namesMaxBackoff = time.Second, 30 * time.Second
	namesInterval                    = 5 * time.Minute
	namesTimeout                     = 10 * time.Second
)

// nodeNames holds the cloud's names of this node, for its kubelet's serving certificate: its name, its address in the tunnel,
// and, if nodes are called directly, the host of the cloudcores. Only the cloud knows that host: it is the Hostname of the Node.
type nodeNames struct {
	node string
	ask  func(context.Context, wire.KubeRequest) (wire.KubeReply, error)
	link func() (up bool, changed <-chan struct{})
	log  *zap.Logger
	host atomic.Pointer[string] // nil before the cloud has sent it
}

// listNames is kubelet.Config.NodeNames. It returns none before the cloud knows the Node: the cloud could not check a request before.
func (n *nodeNames) listNames() []string {
	host := n.host.Load()
	if host == nil {
		return nil
	}
	all := []string{n.node, wire.TunnelAddress(n.node).String()}
	if *host != n.node {
		all = append(all, *host)
	}
	return all
}

// Start asks whenever the link has come up, and periodically, until ctx ends.
func (n *nodeNames) Start(ctx context.Context) error {
	for pause := namesMinBackoff; ; {
		up, changed := n.link()
		wait := namesInterval
		if up {
			host, err := n.fetchHostname(ctx)
			switch {
			case err == nil:
				n.host.Store(&host)
				pause = namesMinBackoff
			case ctx.Err() == nil:
				n.log.Debug("the cloud does not say what this node is called", zap.Error(err))
				wait, pause = pause, min(2*pause, namesMaxBackoff)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (n *nodeNames) fetchHostname(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	reply, err := n.ask(ctx, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/nodes/" + n.node, Accept: runtime.ContentTypeJSON})
	if err != nil {
		return "", err
	}
	if reply.Code != http.StatusOK {
		return "", fmt.Errorf("the cloud answers %d", reply.Code)
	}
	var node corev1.Node
	if err := json.Unmarshal(reply.Body, &node); err != nil {
		return "", fmt.Errorf("read the Node: %w", err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeHostName && a.Address != "" {
			return a.Address, nil
		}
	}
	return "", errors.New("the Node has no Hostname yet")
}
