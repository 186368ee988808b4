package cloud

import (
	"context"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/epoch"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/cloud/kubecalls"
	"github.com/frond-edge/frond/cloud/scoperegistry"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired"
	groups "github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/holds"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/topology"
)

// buildPublishing creates the parts that publish the desired state. They start after the cache.
func buildPublishing(f *foundation, history *epoch.Tracker) (p publishing, parts []lifecycle.Part, err error) {
	publisher, err := publish.NewPublisher(f.hub.writer, f.layout, f.metrics)
	if err != nil {
		return p, nil, err
	}
	holder := holds.New(f.clients.Own, f.objects, f.members.Owns, f.log.Named("holds"))
	grants := scopes.NewGrantTable()
	cfg := desiredConfig(f.cfg, history, holder, f.withheld)
	cfg.Metrics, cfg.Probe = f.registry, kube.NewProbe(f.clients.Metadata)
	cfg.Scopes, cfg.ServicesByNeed = grants.Granted, grants.ServicesByNeed
	cfg.Groups = knownGroups{f.groups}
	if p.engine, err = desired.New(cfg, f.objects, publisher, f.members, f.log.Named("desired")); err != nil {
		return p, nil, err
	}
	engine := p.engine
	f.groups.Subscribe(engine.GroupsChanged)
	p.topology, err = topology.NewReconciler(f.hub.nc, f.cfg.Replicas, f.layout, func() { engine.Resync() }, f.log.Named("keeper"))
	if err != nil {
		return p, nil, err
	}
	s := f.cfg.Scopes
	p.scopes, err = newScopeController(scopes.Config{
		Protected: protectedNamespaces(f.cfg), PerNode: s.PerNode, Objects: s.Objects, JudgeEvery: time.Duration(s.JudgeEvery), Users: s.Users, Metrics: f.registry,
	}, f.clients.Own, f.clients.Metadata, f.objects, scoperegistry.New(f.stores.registry), grants, f.members.Owns, p.engine, f.log.Named("scopes"))
	if err != nil {
		return p, nil, err
	}
	keys := kube.NewTokenKeyPublisher(f.clients.Own, s.TokenAudiences, p.engine.SetStatic, f.log.Named("keys"))
	return p, []lifecycle.Part{
		{Name: "holds", Start: holder.Start},
		{Name: "desired", Start: p.engine.Start, Ready: p.engine.Ready()},
		{Name: "scopes", Start: p.scopes.Start}, // needs the engine's objects
		{Name: "keys", Start: keys.Start},
	}, nil
}

// knownGroups tells the engine of groups: nothing of a Node that was not evaluated yet.
type knownGroups struct{ view *groups.View }

// GroupOf implements topology.Groups of controllers/desired.
func (g knownGroups) GroupOf(node string) (group string, known bool) {
	if !g.view.Ready() {
		return "", false
	}
	now := g.view.Assignment()
	group, _ = now.GroupOf(node)
	return group, now.Knows(node)
}

// protectedNamespaces returns the namespaces whose objects are not published to gateways: Frond's own, and those of the configuration.
func protectedNamespaces(cfg config.CloudCore) controllers.ProtectedNamespaces {
	return controllers.ProtectNamespaces(append([]string{names.Namespace}, cfg.ProtectedNamespaces...)...)
}

// desiredConfig returns the engine's configuration, without what is made for one replica only.
func desiredConfig(of config.CloudCore, history *epoch.Tracker, holder *holds.Reporter, withheld *kubecalls.WithheldEvents) desired.Config {
	cfg := desired.Config{
		ClusterEpoch: history.Epoch(), VerifiedSince: history.VerifiedSince, OnHold: holder.Report,
		Protected: protectedNamespaces(of), OnWithheld: withheld.ReportNeeded,
		TombstoneAge: time.Duration(of.TombstoneAge),
		Guard:        desired.Guard{Minimum: of.DeletionGuard.Minimum, After: time.Duration(of.DeletionGuard.After)},
	}
	if share := of.DeletionGuard.Share; share != nil {
		cfg.Guard.Share = *share
	}
	if keep := of.Restore.KeepFor; keep != nil {
		cfg.Restore = desired.Restore{Since: history.Restored(), KeepFor: time.Duration(*keep)}
	}
	return cfg
}

// newScopeController creates the controller of scope grants, which must not be started before the engine is ready.
func newScopeController(cfg scopes.Config, own kubernetes.Interface, meta metadata.Interface, objects cache.Cache, registry scopes.Registry, grants *scopes.GrantTable,
	owns func(node string) bool, engine *desired.Engine, log *zap.Logger,
) (*scopes.GrantController, error) {
	return scopes.New(cfg, own, objects, meta, registry, grants, scopes.NodeSource{
		IsOwned: owns, Exists: engine.HasNode, RunsServiceAccount: engine.RunsServiceAccount, OnChange: engine.RefreshScopes,
	}, log)
}

// scopesHandler is the call.Handler of subject.VerbScopes.
func scopesHandler(controller *scopes.GrantController) call.Handler {
	return func(ctx context.Context, node string, request []byte) (any, error) {
		var req wire.ScopesRequest
		if err := call.DecodeRequest(request, &req); err != nil {
			return nil, err
		}
		return controller.HandleRequest(ctx, node, req)
	}
}
