package cloud

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams"
)

// identities is what lets gateways in; nil connections are a cloudcore whose configuration has no such section.
type identities struct {
	auth, sys *nats.Conn
	issuer    nkeys.KeyPair
	registrar *identity.Registrar
	// learnt closes when this replica knows of the links that the others have let in.
	learnt <-chan struct{}
	// owns and warn are for what one replica does of all.
	owns func(node string) bool
	warn func(node, reason, message string)
	drop func(node, why string)
	// look has the Node say what became of it; records is nil until the parts are made.
	look    func(node string)
	records *identity.Records
	// closing says whose links are being closed.
	closing func(node string) bool
}

// identity opens the connections: they belong to other accounts of the hub than all else.
func (c *Cloud) identity(reconnects prometheus.Counter) (*identities, error) {
	ids := &identities{}
	if !c.cfg.Identity.Enabled() {
		return ids, nil
	}
	seed, err := os.ReadFile(c.cfg.Identity.IssuerSeedFile)
	if err != nil {
		return nil, fmt.Errorf("identity: issuer: %w", err)
	}
	if ids.issuer, err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
		return nil, fmt.Errorf("identity: issuer %s: %w", c.cfg.Identity.IssuerSeedFile, err)
	}
	for user, to := range map[string]struct {
		file string
		conn **nats.Conn
	}{
		"callout": {c.cfg.Identity.AuthNkeyFile, &ids.auth},
		"kicker":  {c.cfg.Identity.SysNkeyFile, &ids.sys},
	} {
		hub := c.cfg.Hub
		hub.NkeyFile = to.file
		if *to.conn, err = dialHub(hub, "cloudcore "+c.cfg.ID+" "+user, reconnects, c.log.Named(user)); err != nil {
			ids.close()
			return nil, err
		}
	}
	return ids, nil
}

func (i *identities) close() {
	for _, nc := range []*nats.Conn{i.auth, i.sys} {
		if nc != nil {
			nc.Close()
		}
	}
}

// cut says what breaks a node's tunnels; before the parts start.
func (i *identities) cut(drop func(node, why string)) { i.drop = drop }

// Cut is identity.Told.
func (i *identities) Cut(node, why string) { i.drop(node, why) }

// shut is gateway.Config.Shut.
func (i *identities) shut(node string) string {
	if i.records == nil {
		return ""
	}
	return i.records.Shut(node, time.Now())
}

// Revoked is identity.Told.
func (i *identities) Revoked(node string) {
	if i.owns(node) {
		i.warn(node, "IdentityRevoked", "The node was revoked: its keys are rejected and its links are closed. "+
			"It can join again with a token issued for this node (frond token create --node).")
	}
	i.look(node)
}

// revoked says whose gateway was shut out, and has no link any more that is known here.
func (i *identities) revoked(node string) bool {
	if i.records == nil {
		return false
	}
	record := i.records.Of(node)
	return record != nil && !record.RevokedAt.IsZero() && !i.closing(node)
}

// offended is what identity.Offences tells.
func (i *identities) offended(node, what string) {
	i.warn(node, "LinkClosed", "The hub closed the gateway's link for what came over it ("+what+"): the gateway is in foreign hands, or its "+
		"program is not ours. If it is stolen: frond node revoke "+node)
}

// parts makes what lets gateways in.
func (i *identities) parts(c *Cloud, objects cache.Cache, clients kubernetes.Interface, members *Members, alarms *alarms) ([]lifecycle.Part, error) {
	if i.auth == nil {
		return nil, nil
	}
	i.owns, i.warn = members.Owns, alarms.warn
	cfg, log := c.cfg.Identity, c.log.Named("identity")
	kube, err := identity.NewClient(patiently(c.rest))
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	policy := identity.Policy{Cells: cfg.Cells, KeyLifetime: time.Duration(cfg.KeyLifetime), RenewWindow: time.Duration(*cfg.RenewWindow)}
	metrics := identity.NewMetrics(c.metrics)
	enforcer := identity.NewEnforcer(i.sys, policy, i, metrics, log)
	records := identity.NewRecords(kube, enforcer.Changed)
	i.records, i.closing = records, enforcer.Closing
	links := identity.NewLinks(i.auth, enforcer.Admitted, log)
	enforcer.Use(records, links)
	offences := identity.NewOffences(i.sys, policy, i.offended, metrics, log)
	i.learnt = links.Learnt()
	settler := identity.NewSettler(kube, log)
	callout, err := identity.NewCallout(i.auth, i.issuer, policy, records, bootstrapTokens(objects, log), links, settler.Seen, metrics, log)
	if err != nil {
		return nil, err
	}
	i.registrar = identity.NewRegistrar(kube, clients, records, policy, identity.Trust{
		HubURLs: cfg.HubURLs, HubCAFile: cfg.HubCAFile, ClusterCAFile: cfg.ClusterCAFile,
	}, links, settler.Seen, metrics, log)
	return []lifecycle.Part{
		{Name: "identities", Start: records.Start},
		{Name: "links", Start: links.Start},
		{Name: "settler", Start: settler.Start},
		{Name: "enforcer", Start: enforcer.Start},
		{Name: "offences", Start: offences.Start},
		{Name: "callout", Start: callout.Start},
	}, nil
}

// bootstrapTokens looks into the cache, which has all Secrets, and does not wait for it.
func bootstrapTokens(objects cache.Cache, log *zap.Logger) identity.Tokens {
	return func(ctx context.Context, id string) (*api.Token, bool) {
		informer, err := objects.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
		if err != nil || !informer.HasSynced() {
			return nil, false
		}
		secret := &corev1.Secret{}
		if err := objects.Get(ctx, client.ObjectKey{Namespace: api.TokenNamespace, Name: api.TokenName(id)}, secret); err != nil {
			return nil, true
		}
		token, err := api.TokenOf(secret)
		if err != nil {
			log.Warn("token not usable", zap.Error(err))
			return nil, true
		}
		return &token, true
	}
}

// handlers are what nodes ask, and what only asks to be one: a key has no other verb.
func (i *identities) handlers(ofNodes map[string]streams.CallHandler) map[string]streams.CallHandler {
	all := make(map[string]streams.CallHandler, len(ofNodes))
	for verb, handle := range ofNodes {
		all[verb] = func(ctx context.Context, node string, request []byte) (any, error) {
			if len(validation.IsDNS1123Subdomain(node)) > 0 {
				return nil, errors.New("only nodes can call this: the caller has no identity yet")
			}
			return handle(ctx, node, request)
		}
	}
	if i.registrar != nil {
		all[api.VerbEnrol], all[api.VerbRenew] = i.registrar.Enrol, i.registrar.Renew
	}
	return all
}
