// Package rules puts together how cloudcore carries out KubeEdge's Rules: the controller, the hub's messages, the client of targets, and the REST entry.
package rules

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/cloud/rules/entry"
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
	Config   *rest.Config
	Kube     kubernetes.Interface
	Hub      *nats.Conn
	Owner    controllers.Ownership
	Warn     rules.Warn
	Dial     entry.Dial
	Registry prometheus.Registerer
	Common   *metrics.Metrics
}

// Service carries out Rules.
type Service struct {
	controller *rules.Controller
	targets    *target.Client
	// entry is nil without an address.
	entry *entry.Server
}

// New returns the Service. inspection has the certificates of the entry, unless it has its own.
func New(cfg config.Rules, inspection config.Inspect, with Collaborators, log *zap.Logger) (*Service, error) {
	allowed, err := cfg.Prefixes()
	if err != nil {
		return nil, err
	}
	client, err := rules.NewClient(with.Config)
	if err != nil {
		return nil, err
	}
	feeds, err := rulefeed.New(with.Hub, with.Common, log)
	if err != nil {
		return nil, err
	}
	s := &Service{targets: target.New(allowed)}
	s.controller, err = rules.New(client, feedsOfHub{feeds}, func(ctx context.Context, url string, m delivery.Message) error {
		return post(ctx, s.targets, url, m)
	}, with.Owner, with.Warn, with.Registry, log)
	if err != nil {
		return nil, err
	}
	s.entry, err = newEntry(cfg.Entry.WithDefaults(inspection), s.controller.Routes, with, log.Named("entry"))
	return s, err
}

// newEntry returns the REST entry, nil if none is configured.
func newEntry(cfg config.RuleEntry, routes entry.Routes, with Collaborators, log *zap.Logger) (*entry.Server, error) {
	if cfg.Address == "" {
		return nil, nil //nolint:nilnil // none is no error
	}
	var access entry.Access
	if cfg.Insecure {
		log.Warn("the entry of rules serves everybody who reaches its address: rules.entry.insecure is set", zap.String("address", cfg.Address))
	} else {
		access = inspect.AccessReviewer{Kube: with.Kube}
	}
	handler, err := entry.New(access, routes, with.Dial, with.Registry, log)
	if err != nil {
		return nil, fmt.Errorf("entry of rules: %w", err)
	}
	return entry.NewServer(entry.Config{Address: cfg.Address, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, ClientCAFile: cfg.ClientCAFile}, handler, log), nil
}

// Start works until ctx ends and then returns nil.
func (s *Service) Start(ctx context.Context) error {
	defer s.targets.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.controller.Start(gctx) })
	if s.entry != nil {
		g.Go(func() error { return s.entry.Start(gctx) })
	}
	return g.Wait()
}

// post sends a message once, as delivery.Post.
func post(ctx context.Context, targets *target.Client, url string, m delivery.Message) error {
	header := map[string]string{headerNode: m.Node, headerID: m.ID, headerTopic: m.Topic, headerGatewayTime: m.GatewayTime}
	answer, err := targets.Post(ctx, target.Request{URL: url, Header: header, Body: m.Payload})
	switch {
	case errors.Is(err, target.ErrUnusable):
		return fmt.Errorf("%w: %w", delivery.ErrRefused, err)
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
func (f feedsOfHub) Run(ctx context.Context, s rules.Source, r rules.Reader) {
	handle := func(ctx context.Context, m rulefeed.Message) error { return r.Send(ctx, delivery.Message(m)) }
	f.Feeds.Run(ctx, rulefeed.Source(s), rulefeed.Reader{Handle: handle, Made: r.Made, GaveUp: r.GaveUp})
}
