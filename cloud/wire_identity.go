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
	"github.com/frond-edge/frond/streams/call"
)

// identityService contains the parts that admit gateways; its connections are nil if the configuration has no identity section.
type identityService struct {
	auth, sys *nats.Conn
	issuer    nkeys.KeyPair
	registrar *identity.Registrar
	// linksSynced closes when this replica knows the links that the others have admitted.
	linksSynced <-chan struct{}
	// owns and warn are for work that only one of the replicas does.
	owns         func(node string) bool
	warn         func(node, reason, message string)
	closeStreams func(node, why string)
	// refreshNode updates the Node after a change of its identity; records is nil until the parts are created.
	refreshNode func(node string)
	records     *identity.Records
	// linksClosing reports whether a node's links are being closed.
	linksClosing func(node string) bool
}

// dialIdentity opens the connections: they belong to other accounts of the hub than all other connections.
func (c *Cloud) dialIdentity(reconnects prometheus.Counter) (*identityService, error) {
	ids := &identityService{}
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

func (i *identityService) close() {
	for _, nc := range []*nats.Conn{i.auth, i.sys} {
		if nc != nil {
			nc.Close()
		}
	}
}

// setCloseStreams sets the function that breaks a node's tunnels; call it before the parts start.
func (i *identityService) setCloseStreams(drop func(node, why string)) { i.closeStreams = drop }

// CloseStreams implements identity.Notifier.
func (i *identityService) CloseStreams(node, why string) { i.closeStreams(node, why) }

// shutReason implements gateway.Config.BlockedReason.
func (i *identityService) shutReason(node string) string {
	if i.records == nil {
		return ""
	}
	return i.records.BlockedReason(node, time.Now())
}

// NodeRevoked implements identity.Notifier.
func (i *identityService) NodeRevoked(node string) {
	if i.owns(node) {
		i.warn(node, "IdentityRevoked", "The node was revoked: its keys are rejected and its links are closed. "+
			"It can join again with a token issued for this node (frond token create --node).")
	}
	i.refreshNode(node)
}

// isRevoked reports whether a node was revoked and has no link any more that this replica knows.
func (i *identityService) isRevoked(node string) bool {
	if i.records == nil {
		return false
	}
	record := i.records.Lookup(node)
	return record != nil && !record.RevokedAt.IsZero() && !i.linksClosing(node)
}

// reportViolation is the callback of identity.ViolationCounter.
func (i *identityService) reportViolation(node, what string) {
	i.warn(node, "LinkClosed", "The hub closed the gateway's link for what came over it ("+what+"): the gateway is in foreign hands, or its "+
		"program is not ours. If it is stolen: frond node revoke "+node)
}

// buildParts creates the parts that admit gateways.
func (i *identityService) buildParts(c *Cloud, objects cache.Cache, clients kubernetes.Interface, members *Members, alarms *eventRecorder) ([]lifecycle.Part, error) {
	if i.auth == nil {
		return nil, nil
	}
	i.owns, i.warn = members.Owns, alarms.warnNode
	cfg, log := c.cfg.Identity, c.log.Named("identity")
	kube, err := identity.NewClient(withReadRetry(c.rest))
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	policy := identity.Policy{Cells: cfg.Cells, KeyLifetime: time.Duration(cfg.KeyLifetime), RenewWindow: time.Duration(*cfg.RenewWindow)}
	metrics := identity.NewMetrics(c.metrics)
	enforcer := identity.NewEnforcer(i.sys, policy, i, metrics, log)
	records := identity.NewRecords(kube, enforcer.OnRecordChanged)
	i.records, i.linksClosing = records, enforcer.IsClosing
	links := identity.NewLinks(i.auth, enforcer.OnAdmitted, log)
	enforcer.SetSources(records, links)
	offences := identity.NewViolationCounter(i.sys, policy, i.reportViolation, metrics, log)
	i.linksSynced = links.Synced()
	settler := identity.NewKeyConfirmer(kube, log)
	callout, err := identity.NewCallout(i.auth, i.issuer, policy, records, bootstrapTokens(objects, log), links, settler.KeySeen, metrics, log)
	if err != nil {
		return nil, err
	}
	i.registrar = identity.NewRegistrar(kube, clients, records, policy, identity.Trust{
		HubURLs: cfg.HubURLs, HubCAFile: cfg.HubCAFile, ClusterCAFile: cfg.ClusterCAFile,
	}, links, settler.KeySeen, metrics, log)
	return []lifecycle.Part{
		{Name: "identities", Start: records.Start},
		{Name: "links", Start: links.Start},
		{Name: "settler", Start: settler.Start},
		{Name: "enforcer", Start: enforcer.Start},
		{Name: "offences", Start: offences.Start},
		{Name: "callout", Start: callout.Start},
	}, nil
}

// bootstrapTokens returns a lookup in the cache, which has all Secrets; it does not wait for the cache.
func bootstrapTokens(objects cache.Cache, log *zap.Logger) identity.TokenLookup {
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

// callHandlers returns the handlers of the nodes' calls, and those of enrol and renew: a caller that is only a key may
// call no other verb.
func (i *identityService) callHandlers(ofNodes map[string]call.Handler) map[string]call.Handler {
	all := make(map[string]call.Handler, len(ofNodes))
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
