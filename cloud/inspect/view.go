package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// maxReaders is the number of nodes that are read concurrently.
	maxReaders = 16
)

// Members returns the live cloudcores and the owner of each node. Calls may be concurrent and must not block.
type Members interface {
	// Live returns the live cloudcores.
	Live() []string
	// Owner returns the live cloudcore that publishes for a node, "" if none is known.
	Owner(node string) string
}

// View assembles the progress of nodes.
type View struct {
	self       string
	objects    client.Reader
	members    Members
	hub        *publish.Inspector
	autonomy   func(*corev1.Node) (value, group string)
	heartbeats heartbeatLog
}

// NewView creates the view of the replica named self. objects must serve Nodes. autonomy returns how long the pods of a
// Node stay while it is unreachable, "" being the Kubernetes default, and the NodeGroup that specifies it, if not the Node itself.
func NewView(self string, objects client.Reader, members Members, hub *publish.Inspector, autonomy func(*corev1.Node) (value, group string)) *View {
	return &View{self: self, objects: objects, members: members, hub: hub, autonomy: autonomy, heartbeats: heartbeatLog{nodes: map[string]*nodeHeartbeat{}}}
}

// RecordHeartbeat records a heartbeat; the caller has verified its sender. It does not block.
func (v *View) RecordHeartbeat(node string, beat wire.Heartbeat) {
	v.heartbeats.recordHeartbeat(node, beat, time.Now())
}

// Nodes reads the status of all gateways.
func (v *View) Nodes(ctx context.Context) (inspect.Nodes, error) {
	var list corev1.NodeList
	if err := v.objects.List(ctx, &list, client.HasLabels{names.LabelEdge}); err != nil {
		return inspect.Nodes{}, fmt.Errorf("list nodes: %w", err)
	}
	epochOf, err := v.hub.Epochs(ctx)
	if err != nil {
		return inspect.Nodes{}, err
	}
	answer := inspect.Nodes{Replica: v.self, Live: v.members.Live(), Nodes: make([]inspect.Node, len(list.Items))}
	names := make(map[string]bool, len(list.Items))
	var g errgroup.Group
	g.SetLimit(maxReaders)
	for i := range list.Items {
		names[list.Items[i].Name] = true
		g.Go(func() error {
			answer.Nodes[i] = v.nodeStatus(ctx, &list.Items[i], epochOf(list.Items[i].Name))
			return nil
		})
	}
	_ = g.Wait() // each node reports its own problem
	v.heartbeats.pruneNodes(func(node string) bool { return names[node] })
	slices.SortFunc(answer.Nodes, func(a, b inspect.Node) int { return cmp.Compare(a.Name, b.Name) })
	return answer, nil
}

// Node reads the status of one gateway. The error for one that does not exist is NotFound.
func (v *View) Node(ctx context.Context, name string) (inspect.Node, error) {
	var object corev1.Node
	if err := v.objects.Get(ctx, client.ObjectKey{Name: name}, &object); err != nil {
		return inspect.Node{}, err
	}
	epochOf, err := v.hub.Epochs(ctx)
	if err != nil {
		return inspect.Node{}, err
	}
	return v.nodeStatus(ctx, &object, epochOf(name)), nil
}

// Sync reads the status of one gateway and of each of its objects.
func (v *View) Sync(ctx context.Context, name string) (inspect.Sync, error) {
	node, err := v.Node(ctx, name)
	if err != nil {
		return inspect.Sync{}, err
	}
	held, err := v.hub.Held(ctx, name)
	if err != nil {
		return inspect.Sync{}, err
	}
	answer := inspect.Sync{Node: node, Objects: []inspect.Object{}}
	known, cursor := node.Progress != nil && node.Progress.Applied != nil, uint64(0)
	if known {
		cursor = node.Progress.Sequence
	}
	for key, m := range held {
		acked := known && m.Sequence <= cursor
		if key == wire.SnapshotMarker() || acked && m.Op == wire.Delete {
			continue // a tombstone stays for a while after it was acked
		}
		o := v.objectState(name, key, m, acked)
		if o.Acked == "" && cursor != 0 { // a disk of unknown state may have been wiped since
			o.Acked = m.Acked
		}
		answer.Objects = append(answer.Objects, o)
	}
	slices.SortFunc(answer.Objects, func(a, b inspect.Object) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return answer, nil
}

// objectState returns how far one object was delivered and applied.
func (v *View) objectState(node string, key wire.Key, m wire.Message, acked bool) inspect.Object {
	o := inspect.Object{
		Group: key.Group, Resource: key.Resource, Namespace: key.Namespace, Name: key.Name,
		UID: m.UID, State: inspect.Pending, Desired: m.Version, Changed: m.Time, Sequence: m.Sequence,
	}
	if acked {
		o.State, o.Acked, o.AckedAt = inspect.Synced, m.Version, v.heartbeats.passedAt(node, m.Sequence)
	}
	if m.Op == wire.Delete {
		o.State, o.Desired = inspect.Deleting, ""
	}
	return o
}

// nodeStatus assembles the status of one gateway. Data that the hub does not return is reported as a problem.
func (v *View) nodeStatus(ctx context.Context, object *corev1.Node, epoch string) inspect.Node {
	n := inspect.Node{
		Name: object.Name, Link: string(corev1.ConditionUnknown), Owner: v.members.Owner(object.Name),
		Heartbeat: v.heartbeats.lastHeartbeat(object.Name), Kubelet: object.Status.NodeInfo.KubeletVersion,
	}
	n.Autonomy, n.AutonomyGroup = v.autonomy(object)
	for _, c := range object.Status.Conditions {
		if c.Type == names.ConditionConnected {
			n.Link, n.LinkSince = string(c.Status), c.LastTransitionTime.UTC()
		}
	}
	progress, err := v.readProgress(ctx, object.Name, n.Heartbeat, epoch)
	if err != nil {
		n.Problem = err.Error()
		return n
	}
	n.Progress = &progress
	return n
}

// readProgress reads one node's progress from the hub.
func (v *View) readProgress(ctx context.Context, node string, heard *inspect.Heartbeat, epoch string) (inspect.Progress, error) {
	info, err := v.hub.Consumer(ctx, node)
	if err != nil {
		return inspect.Progress{}, err
	}
	marker, err := v.hub.MarkerSequence(ctx, node)
	if err != nil {
		return inspect.Progress{}, err
	}
	all, _, err := v.hub.Count(ctx, node, 0)
	if err != nil {
		return inspect.Progress{}, err
	}
	t := progressReading{heartbeat: heard, consumer: consumerOf(info), epoch: epoch, marker: marker, total: all}
	if t.sequence, t.source = t.appliedCursor(); t.source != "" {
		if t.missing, t.oldest, err = v.hub.Count(ctx, node, t.sequence); err != nil {
			return inspect.Progress{}, err
		}
	}
	return t.computeProgress(), nil
}

func consumerOf(info *jetstream.ConsumerInfo) *inspect.Consumer {
	if info == nil {
		return nil
	}
	c := &inspect.Consumer{
		Stream: info.Stream, Name: info.Name, Delivered: info.Delivered.Stream, AckFloor: info.AckFloor.Stream,
		// A node that lacks payloads of messages before its consumer's start acks later messages all the same.
		Acked: info.AckFloor.Consumer != 0 && info.Config.Metadata[topology.MetadataAwaits] == "", AckPending: info.NumAckPending, Pending: info.NumPending,
	}
	if info.AckFloor.Last != nil {
		c.LastAck = info.AckFloor.Last.UTC()
	}
	return c
}
