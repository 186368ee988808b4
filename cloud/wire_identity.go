package cloud

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/cloud/identity/callout"
	"github.com/frond-edge/frond/cloud/identity/links"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
)

// admission are the parts that admit gateways; nil if the configuration has no identity section.
type admission struct {
	records    *identity.Records
	registrar  *identity.Registrar
	settler    *identity.KeyConfirmer
	schedule   *links.Schedule
	links      *links.Registry
	violations *links.ViolationCounter
	callout    *callout.Callout
	metrics    *links.Metrics
	log        *zap.Logger
}

// buildAdmission creates the parts that admit gateways.
func buildAdmission(f *foundation) (*admission, error) {
	if f.hub.auth == nil {
		return nil, nil //nolint:nilnil // documented at the type
	}
	cfg, log := f.cfg.Identity, f.log.Named("identity")
	objects, err := identity.NewClient(f.clients.ReadRetry)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	metrics := identity.NewMetrics(f.registry)
	policy := identity.Policy{Cells: cfg.Cells, KeyLifetime: time.Duration(cfg.KeyLifetime), RenewWindow: time.Duration(*cfg.RenewWindow)}
	a := &admission{
		records: identity.NewRecords(objects), settler: identity.NewKeyConfirmer(objects, log), metrics: links.NewMetrics(f.registry), log: log,
	}
	a.schedule = links.NewSchedule(policy, a.records)
	a.links = links.NewRegistry(f.hub.auth, a.schedule.OnAdmitted, log)
	a.violations = links.NewViolationCounter(f.hub.sys, policy, func(node, what string) {
		f.events.WarnNode(node, names.EventLinkClosed, "The hub closed the gateway's link for what came over it ("+what+"): the gateway is in foreign hands, or its "+
			"program is not ours. If it is stolen: frond node revoke "+node)
	}, a.metrics, log)
	a.callout, err = callout.New(f.hub.auth, f.hub.issuer, policy, a.records, bootstrapTokens(f.objects, log), a.links, a.settler.KeySeen,
		metrics, callout.NewMetrics(f.registry), log)
	if err != nil {
		return nil, err
	}
	a.registrar = identity.NewRegistrar(objects, f.clients.Own, a.records, policy, identity.Trust{
		HubURLs: cfg.HubURLs, HubCAFile: cfg.HubCAFile, ClusterCAFile: cfg.ClusterCAFile,
	}, a.links, a.settler.KeySeen, metrics, log)
	return a, nil
}

// parts returns the parts in the order in which they start; none if there is no admission. enforcer comes from newEnforcer.
func (a *admission) parts(enforcer *links.Enforcer) []lifecycle.Part {
	if a == nil {
		return nil
	}
	return []lifecycle.Part{
		{Name: "identities", Start: func(ctx context.Context) error { return a.records.Follow(ctx, a.schedule.OnRecordChanged) }},
		{Name: "links", Start: a.links.Start},
		{Name: "settler", Start: a.settler.Start},
		{Name: "enforcer", Start: enforcer.Start},
		{Name: "offences", Start: a.violations.Start},
		{Name: "callout", Start: a.callout.Start},
	}
}

// blockedReason implements gateway.Config.BlockedReason.
func (a *admission) blockedReason(node string) string {
	if a == nil {
		return ""
	}
	return a.records.BlockedReason(node, time.Now())
}

// isRevoked reports whether a node was revoked and has no link any more that this replica knows.
func (a *admission) isRevoked(node string) bool {
	if a == nil {
		return false
	}
	record := a.records.Lookup(node)
	return record != nil && !record.RevokedAt.IsZero() && !a.schedule.IsClosing(node)
}

// newEnforcer creates the part that closes links, and with them the streams of their nodes; nil if there is no
// admission. refreshNode updates a Node after a change of its identity.
func (a *admission) newEnforcer(f *foundation, closeStreams func(node, why string), refreshNode func(node string)) *links.Enforcer {
	if a == nil {
		return nil
	}
	notifier := identityNotifier{owns: f.members.Owns, warn: f.events.WarnNode, closeStreams: closeStreams, refreshNode: refreshNode}
	return links.NewEnforcer(f.hub.sys, a.records, a.links, a.schedule, notifier, a.metrics, a.log)
}

// identityNotifier implements links.Notifier.
type identityNotifier struct {
	// owns and warn are for work that only one of the replicas does.
	owns         func(node string) bool
	warn         func(node, reason, message string)
	closeStreams func(node, why string)
	refreshNode  func(node string)
}

// CloseStreams implements links.Notifier.
func (n identityNotifier) CloseStreams(node, why string) { n.closeStreams(node, why) }

// NodeRevoked implements links.Notifier.
func (n identityNotifier) NodeRevoked(node string) {
	if n.owns(node) {
		n.warn(node, names.EventIdentityRevoked, "The node was revoked: its keys are rejected and its links are closed. "+
			"It can join again with a token issued for this node (frond token create --node).")
	}
	n.refreshNode(node)
}

// bootstrapTokens returns a lookup in the cache, which has all Secrets; it does not wait for the cache.
func bootstrapTokens(objects cache.Cache, log *zap.Logger) callout.TokenLookup {
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
func (a *admission) callHandlers(ofNodes map[string]call.Handler) map[string]call.Handler {
	all := make(map[string]call.Handler, len(ofNodes))
	for verb, handle := range ofNodes {
		all[verb] = func(ctx context.Context, node string, request []byte) (any, error) {
			if len(validation.IsDNS1123Subdomain(node)) > 0 {
				return nil, errors.New("only nodes can call this: the caller has no identity yet")
			}
			return handle(ctx, node, request)
		}
	}
	if a != nil {
		all[api.VerbEnrol], all[api.VerbRenew] = a.registrar.Enrol, a.registrar.Renew
	}
	return all
}
