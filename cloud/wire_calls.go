package cloud

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/kubecalls"
	"github.com/frond-edge/frond/cloud/nodehealth"
	"github.com/frond-edge/frond/cloud/redialpause"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/controllers/jobs/taskreports"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
)

// newCallServer creates the server of the nodes' calls.
func newCallServer(f *foundation, p publishing, admission *admission, duplicates *nodehealth.DuplicateDetector, devices deviceServices) (*call.Server, error) {
	pause := redialpause.New(f.cfg.Links.PerSecondOrDefault(), redialpause.CountIn(f.objects), f.log.Named("attach"))
	attacher, err := publish.NewAttacher(publish.AttacherConfig{
		NodeExists: func(ctx context.Context, node string) bool {
			return f.objects.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}) == nil
		},
		OnAttached: func(node, instance string) { duplicates.ProbeAttached(node, instance, time.Now()) },
		RedialMax:  func(ctx context.Context) time.Duration { return pause.Longest(ctx, time.Now()) },
	}, f.hub.nc, f.layout, f.metrics, f.log.Named("attach"))
	if err != nil {
		return nil, err
	}
	pieces, err := chunk.NewServer(f.hub.nc, f.layout, f.log.Named("pieces"))
	if err != nil {
		return nil, err
	}
	parts, err := chunk.NewStore(f.hub.nc, f.log.Named("parts"))
	if err != nil {
		return nil, err
	}
	guard, err := kubecalls.NewNamespaceGuard(protectedNamespaces(f.cfg), f.clients.Config, f.withheld)
	if err != nil {
		return nil, err
	}
	requests, err := kubecalls.New(f.clients.Config, f.cfg.Impersonation == kubeversion.Classic, guard, p.engine.CutEndpoints, f.registry, f.log.Named("calls"))
	if err != nil {
		return nil, err
	}
	return call.NewServer(f.hub.nc, admission.callHandlers(map[string]call.Handler{
		subject.VerbAttach: func(ctx context.Context, node string, request []byte) (any, error) {
			p.engine.AdmitNode(node)
			return attacher.Handle(ctx, node, request)
		},
		subject.VerbPiece:  pieces.Handle,
		subject.VerbPart:   parts.Handle,
		subject.VerbKube:   requests.Handle,
		subject.VerbWatch:  requests.Watch,
		subject.VerbScopes: scopesHandler(p.scopes),
		subject.VerbSame:   sameHandler(f.objects),
		subject.VerbPing:   func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },

		subject.VerbTelemetry: devices.samples.Handle,
		subject.VerbMessages:  devices.messages.Handle,
	}), f.metrics, f.log.Named("calls"))
}

// sameHandler is the call.Handler of subject.VerbSame.
func sameHandler(objects client.Reader) call.Handler {
	return func(ctx context.Context, node string, request []byte) (any, error) {
		var req wire.SameRequest
		if err := call.DecodeRequest(request, &req); err != nil {
			return nil, err
		}
		return reports.ComparePods(ctx, objects, node, req)
	}
}

// buildReportReaders creates the consumers of the nodes' reports; addressing configures how the cloud reaches nodes.
func buildReportReaders(f *foundation, addressing reports.NodeAddressing, deviceStatuses *devicestatus.Applier, tasks *taskreports.Applier) ([]lifecycle.Part, error) {
	requestReport := func(node string, key wire.Key) error { return call.RequestReport(f.hub.nc, node, key) }
	later := nodehealth.NewRereportQueue(requestReport,
		func(node string) error { return call.SendCommand(f.hub.nc, node, call.VerbReports, nil) }, f.log.Named("again"))
	gaveUp := map[subject.Plane]func(wire.Message){subject.Report: later.Schedule} // an event is not a state that can be requested again
	overtaken := func(m wire.Message) {
		if err := requestReport(m.Node, m.Key); err != nil {
			f.log.Warn("node not asked to report again", zap.String("node", m.Node), zap.Error(err))
		}
	}
	parts := []lifecycle.Part{{Name: "again", Start: later.Start}}
	for _, plane := range []subject.Plane{subject.Report, subject.Event} {
		latest, err := consume.NewLatestReports(plane, f.hub.nc)
		if err != nil {
			return nil, err
		}
		log := f.log.Named(string(plane))
		applier := reports.New(reports.Config{
			OnOvertaken: overtaken, Addressing: addressing, Protected: protectedNamespaces(f.cfg),
			Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"plane": string(plane)}, f.registry),
		}, f.clients.Own, f.clients.AsNode, f.objects, latest.StillLast, log)
		handle := applier.Handle
		if plane == subject.Report {
			handle = func(ctx context.Context, m wire.Message) error {
				switch {
				case devicestatus.Handles(m.Key):
					return deviceStatuses.Handle(ctx, m)
				case taskreports.Handles(m.Key):
					return tasks.Handle(ctx, m)
				}
				return applier.Handle(ctx, m)
			}
		}
		consumer, err := consume.NewReportConsumer(plane, f.hub.nc, handle, gaveUp[plane], f.metrics, log)
		if err != nil {
			return nil, err
		}
		parts = append(parts, lifecycle.Part{Name: string(plane) + "s", Start: consumer.Start})
	}
	return parts, nil
}
