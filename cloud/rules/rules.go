// Package rules puts together how cloudcore carries out KubeEdge's Rules: the controller, the hub's messages, and the client of targets.
package rules

import (
	"context"
	"net/netip"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/cloud/rules/target"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/rules"
	"github.com/frond-edge/frond/controllers/rules/delivery"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/rulefeed"
)

// The headers of a message at its target. KubeEdge has headerNode, too, though not for messages of apps.
const (
	headerNode        = "NodeName"
	headerID          = "Frond-Message-Id"
	headerTopic       = "Frond-Topic"
	headerGatewayTime = "Frond-Gateway-Time"
)

// Collaborators are what rules share with the rest of cloudcore.
type Collaborators struct {
	Kube     *rest.Config
	Hub      *nats.Conn
	Owner    controllers.Ownership
	Warn     rules.Warn
	Registry prometheus.Registerer
	Common   *metrics.Metrics
}

// Service carries out Rules.
type Service struct {
	controller *rules.Controller
	targets    *target.Client
}

// New returns the Service. allowed are the networks of targets beside public addresses.
func New(allowed []netip.Prefix, with Collaborators, log *zap.Logger) (*Service, error) {
	client, err := rules.NewClient(with.Kube)
	if err != nil {
		return nil, err
	}
	feeds, err := rulefeed.New(with.Hub, with.Common, log)
	if err != nil {
		return nil, err
	}
	targets := target.New(allowed)
	controller, err := rules.New(client, feedsOfHub{feeds}, func(ctx context.Context, url string, m delivery.Message) error {
		return post(ctx, targets, url, m)
	}, with.Owner, with.Warn, with.Registry, log)
	if err != nil {
		return nil, err
	}
	return &Service{controller: controller, targets: targets}, nil
}

// Start works until ctx ends and then returns nil.
func (s *Service) Start(ctx context.Context) error {
	defer s.targets.Close()
	return s.controller.Start(ctx)
}

// post sends a message once, as delivery.Post.
func post(ctx context.Context, targets *target.Client, url string, m delivery.Message) error {
	header := map[string]string{headerNode: m.Node, headerID: m.ID, headerTopic: m.Topic, headerGatewayTime: m.GatewayTime}
	answer, err := targets.Post(ctx, target.Request{URL: url, Header: header, Body: m.Payload})
	switch {
	case err != nil:
		return err
	case answer.Code < 200 || answer.Code > 299:
		return &delivery.StatusError{Code: answer.Code, Text: answer.Text}
	}
	return nil
}

// feedsOfHub implements rules.Feeds.
type feedsOfHub struct{ *rulefeed.Feeds }

// Run implements rules.Feeds.
func (f feedsOfHub) Run(ctx context.Context, s rules.Source, send func(context.Context, delivery.Message) error) {
	f.Feeds.Run(ctx, rulefeed.Source(s), func(ctx context.Context, m rulefeed.Message) error {
		return send(ctx, delivery.Message(m))
	})
}
