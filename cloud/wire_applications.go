package cloud

import (
	"fmt"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud/rules"
	"github.com/frond-edge/frond/controllers/applications"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildApplications creates the controller of EdgeApplications.
func buildApplications(f *foundation) (lifecycle.Part, error) {
	client, err := dynamic.NewForConfig(f.clients.Config)
	if err != nil {
		return lifecycle.Part{}, fmt.Errorf("client of the objects of applications: %w", err)
	}
	controller := applications.New(applications.Clients{
		Kube: f.clients.Own, Dynamic: client, Applications: f.groupClient,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(f.clients.Own.Discovery())),
	}, f.objects, f.groups, f.members, f.events.RecordEvent, f.log.Named("applications"))
	return lifecycle.Part{Name: "applications", Start: controller.Start}, nil
}

// buildRules creates what carries out Rules.
func buildRules(f *foundation, admission *admission, dialer *tunnel.Dialer) (lifecycle.Part, error) {
	service, err := rules.New(f.cfg.Rules, f.cfg.Inspect, rules.Collaborators{
		Config: f.clients.Config, Kube: f.clients.Own, Hub: f.hub.nc, Owner: f.members, Warn: f.events.RecordEvent, Registry: f.registry, Common: f.metrics,
		Dial: dialReserved(admission, dialer, config.EdgeServicePort),
	}, f.log.Named("rules"))
	if err != nil {
		return lifecycle.Part{}, err
	}
	return lifecycle.Part{Name: "rules", Start: service.Start}, nil
}
