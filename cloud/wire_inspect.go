package cloud

import (
	"fmt"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/controllers/autonomy"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/publish"
)

// buildInspection creates the view of all nodes, and the server of that view if an address is configured.
func (c *Cloud) buildInspection(nc *nats.Conn, objects cache.Cache, members *Members, calm *autonomy.TolerationController) (*inspect.View, []lifecycle.Part, error) {
	hub, err := publish.NewInspector(nc)
	if err != nil {
		return nil, nil, err
	}
	view := inspect.NewView(c.cfg.ID, objects, members, hub, func(node *corev1.Node) (value, group string) {
		value, group, _ = calm.Lookup(node)
		return value, group
	})
	if c.cfg.Inspect.Address == "" {
		return view, nil, nil
	}
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, nil, fmt.Errorf("kubernetes: %w", err)
	}
	server := inspect.NewServer(inspect.Config(c.cfg.Inspect), clients, view, c.log.Named("inspect"))
	return view, []lifecycle.Part{{Name: "inspect", Start: server.Start, Ready: server.Ready()}}, nil
}
