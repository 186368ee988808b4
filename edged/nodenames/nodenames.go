// Package nodenames learns from the cloud under which names it calls a gateway's kubelet, for the kubelet's serving certificate.
//
// It asks when the link comes up and periodically, and keeps the last answer in memory alone.
package nodenames

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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// minBackoff and maxBackoff limit the pause after an answer without a name; askInterval is the one after one with it.
	minBackoff, maxBackoff = time.Second, 30 * time.Second
	askInterval            = 5 * time.Minute
	askTimeout             = 10 * time.Second
)

// AskFunc sends a request to the Kubernetes API of the cloud.
type AskFunc func(context.Context, wire.KubeRequest) (wire.KubeReply, error)

// Link reports whether the cloud is reachable.
type Link interface {
	State() (up bool, changed <-chan struct{})
}

// Resolver holds the cloud's names of this node: its name, its address in the tunnel, and, if nodes are called directly, the host of
// the cloudcores. Only the cloud knows that host: it is the Hostname of the Node.
type Resolver struct {
	node string
	ask  AskFunc
	link Link
	log  *zap.Logger
	host atomic.Pointer[string] // nil before the cloud has sent it
}

// New returns the resolver of a node's names.
func New(node string, ask AskFunc, link Link, log *zap.Logger) *Resolver {
	return &Resolver{node: node, ask: ask, link: link, log: log}
}

// List is kubelet.ServingCertConfig.NodeNames. It returns none before the cloud knows the Node: the cloud could not check a request before.
func (n *Resolver) List() []string {
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
func (n *Resolver) Start(ctx context.Context) error {
	for pause := minBackoff; ; {
		up, changed := n.link.State()
		wait := askInterval
		if up {
			host, err := n.fetchHostname(ctx)
			switch {
			case err == nil:
				n.host.Store(&host)
				pause = minBackoff
			case ctx.Err() == nil:
				n.log.Debug("the cloud does not say what this node is called", zap.Error(err))
				wait, pause = pause, min(2*pause, maxBackoff)
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

// hostnameOf returns the Hostname that the cloud has given a Node. Before, a new Node has the one that its kubelet created it with. The
// cloud adds the address in the tunnel together with its Hostname.
func hostnameOf(addresses []corev1.NodeAddress) (string, error) {
	hostname, fromCloud := "", false
	for _, a := range addresses {
		if a.Type == corev1.NodeHostName {
			hostname = a.Address
		}
		fromCloud = fromCloud || a.Type == names.AddressTunnel
	}
	if hostname == "" || !fromCloud {
		return "", errors.New("the cloud has not named the Node yet")
	}
	return hostname, nil
}

func (n *Resolver) fetchHostname(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
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
	return hostnameOf(node.Status.Addresses)
}
