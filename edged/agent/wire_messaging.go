package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/diskmonitor"
	"github.com/frond-edge/frond/edged/endpointsync"
	"github.com/frond-edge/frond/edged/heaprelease"
	"github.com/frond-edge/frond/edged/nodestore"
	"github.com/frond-edge/frond/edged/resync"
	"github.com/frond-edge/frond/edged/scopesync"
	"github.com/frond-edge/frond/edged/uplink"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/merge"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// openStore creates the node's own streams and opens the store.
func openStore(ctx context.Context, f *foundation) (*store.Store, *outbox.Outbox, error) {
	js, err := jetstream.New(f.local)
	if err != nil {
		return nil, nil, fmt.Errorf("jetstream: %w", err)
	}
	if err := topology.EnsureLeaf(ctx, js, f.log.Named("streams")); err != nil {
		return nil, nil, fmt.Errorf("prepare the leaf: %w", err)
	}
	sealer, err := seal.Load(filepath.Join(identityDir(f.cfg), "store.key"), f.log.Named("seal"))
	if err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, js, store.Config{
		Sealer: sealer, IsSecret: localapi.IsSecret,
		Merge: merge.ForNode(f.cfg.Node), HighWaterFile: highWaterFile(f.cfg),
		LastGoodFile: filepath.Join(f.cfg.Dir, "store.copy"), CheckWritable: diskmonitor.WritableCheck(f.leaf.DiskSpace),
		LowSpace: func() bool { return f.leaf.DiskSpace().Low }, Metrics: f.metrics,
	}, f.log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	sink, err := outbox.New(f.cfg.Node, st.Cursor().StoreEpoch, f.local)
	return st, sink, err
}

// downward are the parts that bring the desired state into the store.
type downward struct {
	store    *nodestore.Audited
	gate     *link.FencedLink
	delivery *deliver.Delivery
	metrics  *metrics.Metrics
}

// buildDelivery creates the delivery into the store, which the fault suite has recorded.
func buildDelivery(f *foundation, st *store.Store) (d downward, err error) {
	d = downward{
		store: nodestore.NewAudited(st, f.metrics), gate: link.NewFencedLink(f.link, f.log.Named("gate")), metrics: metrics.New(f.metrics),
	}
	cfg, into := deliver.Config{Node: f.cfg.Node, OnRedialMax: f.leaf.SetRedialMax}, deliver.Store(d.store)
	if f.cfg.History != "" {
		recorder, err := nodestore.NewRecorder(d.store, f.cfg.History, f.log.Named("history"))
		if err != nil {
			return d, err
		}
		cfg.BeforeAck, into = recorder.RecordAck, recorder
	}
	d.delivery, err = deliver.NewDelivery(cfg, f.nc, into, d.gate, d.metrics, f.log.Named("delivery"))
	return d, err
}

// buildMessaging creates the parts that transfer messages, and the node's own health.
func buildMessaging(f *foundation, down downward, sink *outbox.Outbox, api *localapi.Server, kubelet *kubeletHealth, disk *diskmonitor.Monitor) ([]lifecycle.Part, error) {
	node, st := f.cfg.Node, down.store
	reports, err := outbox.NewPump(subject.Report, f.local, f.nc, down.gate, down.metrics, f.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	events, err := outbox.NewPump(subject.Event, f.local, f.nc, down.gate, down.metrics, f.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	beater := call.NewHeartbeater(node, f.nc, func(census bool) wire.Heartbeat {
		instance, since := down.delivery.Identity()
		beat := wire.Heartbeat{
			Cursor: st.Cursor(), Outbox: reports.Waiting() + events.Waiting(),
			Healthy: kubelet.isAlive(), Version: buildinfo.Version(),
			Instance: instance, Since: since.Milliseconds(), Fenced: down.gate.Fenced(),
		}
		if census {
			st.AddInventory(&beat)
		}
		return beat
	}, f.log.Named("beat"))
	again := resync.New(node, st.Store, f.link, sink, api.LockKey, compareCall(f), f.log.Named("resync"))
	nudges := call.NewReportRequests(again.ReportRequested, down.metrics, f.log.Named("nudges"))
	orders := call.NewCommandListener(node, f.nc, commandHandlers(down, again, nudges, beater, f.leaf.ExpectStop), down.metrics, f.log.Named("orders"))
	server := health.New(f.cfg.Listen, f.metrics, readinessChecks(f, down, disk, kubelet)...)
	return []lifecycle.Part{
		{Name: "health", Start: server.Start, Ready: server.Ready()},
		{Name: "gate", Start: down.gate.Start},
		{Name: "delivery", Start: down.delivery.Start},
		{Name: "reports", Start: reports.Start},
		{Name: "events", Start: events.Start},
		{Name: "beat", Start: beater.Start},
		{Name: "resync", Start: again.Start},
		{Name: "nudges", Start: nudges.Start},
		{Name: "storage", Start: disk.Start},
		{Name: "uplink", Start: uplink.New(func() bool { return f.leaf.Link().Up }, f.leaf.Redial, f.log.Named("uplink")).Start},
		{Name: "orders", Start: orders.Start},
		{Name: "endpoints", Start: endpointsync.New(node, st.Store, f.log.Named("endpoints")).Start},
		{Name: "memory", Start: heaprelease.New(f.log.Named("memory")).Start},
		{Name: "copy", Start: nodestore.NewLastGoodSaver(st.SaveLastGood, f.log.Named("copy")).Start},
		{Name: "scopes", Start: scopesync.New(api, down.gate, scopesCall(f), f.log.Named("scopes")).Start},
	}, nil
}

// scopesCall returns the call that sends scopes to the cloud.
func scopesCall(f *foundation) scopesync.AskFunc {
	return func(ctx context.Context, request wire.ScopesRequest) (reply wire.ScopesReply, err error) {
		if err := call.Call(ctx, f.nc, f.cfg.Node, subject.VerbScopes, request, &reply); err != nil {
			return reply, err
		}
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	}
}

// compareCall returns the call that asks the cloud which pods need no report.
func compareCall(f *foundation) resync.CompareFunc {
	return func(ctx context.Context, request wire.SameRequest) (reply wire.SameReply, err error) {
		if err := call.Call(ctx, f.nc, f.cfg.Node, subject.VerbSame, request, &reply); err != nil {
			return reply, err
		}
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	}
}
