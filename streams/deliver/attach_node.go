package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// attach lists the desired state: it brings the store up to the end of the snapshot, except for payloads to be fetched in pieces, and
// returns the last page.
func (d *Delivery) attach(ctx context.Context, everything bool) (wire.AttachReply, error) {
	cursor, err := d.resumeCursor(ctx)
	if err != nil {
		return wire.AttachReply{}, err
	}
	select {
	case <-d.deadServers: // before the first request
	default:
	}
	request := wire.AttachRequest{Cursor: cursor, Full: everything, Instance: d.instance}
	var first *wire.AttachReply
	var full deliveryBatch
	marked, seen := false, map[string]struct{}{}
	for {
		request.MaxBytes, request.PayloadsPending = d.bandwidth.Budget(), len(full.pending)+len(d.currentProgress().pending) > 0
		reply, err := d.requestPage(ctx, request)
		if err != nil {
			return reply, err
		}
		if first == nil {
			first = &reply
		}
		if reply.StreamEpoch != first.StreamEpoch || reply.Full != first.Full {
			return reply, errors.New("the stream began a new life between two pages")
		}
		failpoint.At("attach.answered")
		page, held, err := d.readPage(ctx, reply)
		if err != nil {
			return reply, err
		}
		marked = marked || held
		if reply.Full {
			full.messages, full.pending = append(full.messages, page.messages...), append(full.pending, page.pending...)
		} else if err := d.saveBatch(ctx, page); err != nil {
			return reply, err
		}
		for _, object := range reply.Objects {
			seen[object.Subject] = struct{}{}
		}
		if reply.Continue != 0 {
			request.Continue, request.UpTo = reply.Continue, max(request.UpTo, reply.UpTo)
			continue
		}
		if reply.Full {
			if err := d.saveSnapshot(ctx, reply, full, len(seen), marked); err != nil {
				return reply, err
			}
		}
		d.log.Info("attached", zap.Bool("full", reply.Full), zap.Uint64("seq", reply.UpTo), zap.Int("awaited", len(d.currentProgress().pending)))
		return reply, nil
	}
}

// resumeCursor returns the cursor to list from. If the store's cursor differs from the delivery's progress, the store's value is used:
// the store may have found damage.
func (d *Delivery) resumeCursor(ctx context.Context) (wire.Cursor, error) {
	if err := d.acquireSave(ctx); err != nil {
		return wire.Cursor{}, err
	}
	defer d.releaseSave()
	cursor, b := d.store.Cursor(), d.currentProgress()
	if b.epoch != cursor.StreamEpoch || b.safeCursor() != cursor.Sequence {
		b = deliveryProgress{epoch: cursor.StreamEpoch, reached: cursor.Sequence}
		d.setProgress(b)
	}
	cursor.Sequence = b.reached
	return cursor, nil
}

// saveSnapshot saves a full snapshot after checking that it is complete.
func (d *Delivery) saveSnapshot(ctx context.Context, last wire.AttachReply, full deliveryBatch, subjects int, marked bool) error {
	switch {
	case subjects < last.Subjects:
		return fmt.Errorf("the snapshot has %d objects of %d: it comes from a replica that lags behind", subjects, last.Subjects)
	case last.MarkerRequired && !marked:
		return errors.New("the snapshot comes from a replica that lags behind")
	}
	if err := d.acquireSave(ctx); err != nil {
		return err
	}
	defer d.releaseSave()
	full.sequence = last.UpTo
	next := deliveryProgress{epoch: last.StreamEpoch}.applyBatch(full)
	messages := full.messages
	for _, m := range next.pending { // the store keeps its versions until the payloads are there
		messages = append(messages, wire.Message{Node: d.node, Key: m.key, Sequence: m.sequence})
	}
	if err := d.store.Replace(ctx, messages, last.StreamEpoch, next.safeCursor()); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	d.setProgress(next)
	d.prefetched = nil
	failpoint.At("attach.replaced")
	d.observeLatency(full.messages)
	return nil
}

// requestPage requests one page of the snapshot.
func (d *Delivery) requestPage(ctx context.Context, request wire.AttachRequest) (wire.AttachReply, error) {
	var reply wire.AttachReply
	asked := time.Now()
	if err := d.callAttach(ctx, request, &reply); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			d.bandwidth.ObserveTimeout()
		}
		return reply, err
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("attach refused: %s", reply.Error)
	}
	size := 0
	for _, object := range reply.Objects {
		size += read.EstimateLinkBytes(object)
	}
	d.bandwidth.ObserveReply(size, time.Since(asked))
	return reply, nil
}

// callAttach sends the call of an attach. When a cloudcore or a hub server has died, the request may have been lost with it and would
// never be answered, so callAttach sends it again.
func (d *Delivery) callAttach(ctx context.Context, request wire.AttachRequest, reply *wire.AttachReply) error {
	for {
		cctx, cancel := context.WithCancelCause(ctx)
		var g errgroup.Group
		g.Go(func() error {
			select {
			case <-d.deadServers:
				cancel(errServerDied)
			case <-cctx.Done():
			}
			return nil
		})
		err := call.Call(cctx, d.nc, d.node, subject.VerbAttach, request, reply)
		cancel(nil)
		if wait := g.Wait(); wait != nil {
			return wait
		}
		if err == nil || !errors.Is(context.Cause(cctx), errServerDied) {
			return err
		}
		d.log.Info("asking again", zap.NamedError("because", errServerDied))
	}
}

// readPage decodes a page and reports whether it contains the snapshot marker. A malformed message goes to the dead letters and stays in
// the page without an operation.
func (d *Delivery) readPage(ctx context.Context, reply wire.AttachReply) (h deliveryBatch, marked bool, err error) {
	h.sequence = reply.UpTo
	if reply.Continue != 0 {
		h.sequence = reply.Continue - 1
	}
	for _, object := range reply.Objects {
		d.metrics.Delivered.Inc()
		m, awaited, err := d.readObject(ctx, reply, object)
		switch {
		case err != nil:
			return deliveryBatch{}, false, err
		case m.Key == wire.SnapshotMarker():
			marked = m.Op == wire.Apply
		case awaited != nil:
			h.pending = append(h.pending, awaited)
		default:
			h.messages = append(h.messages, m)
		}
	}
	return h, marked, nil
}

// readObject decodes one object of a page. It returns a pendingObject if the payload is to be fetched later, and a message without an
// operation for a malformed object and for one that the store is known to hold.
func (d *Delivery) readObject(ctx context.Context, reply wire.AttachReply, object wire.SnapshotObject) (wire.Message, *pendingObject, error) {
	var m wire.Message
	var err error
	if object.Size > 0 {
		m, err = envelope.DecodeHeader(object.Subject, object.Header)
		if err == nil && object.Size > topology.MaxMessage {
			err = envelope.PermanentErrorf("payload of %d bytes, at most %d", object.Size, topology.MaxMessage)
		}
	} else {
		m, err = d.codec.Decode(object.Subject, object.Header, object.Data)
	}
	if err == nil && m.Node != d.node {
		err = envelope.PermanentErrorf("message of node %.120q", m.Node)
	}
	m.Sequence = object.Sequence
	if err != nil {
		if err := d.deadLetters.Put(ctx, subject.Desired, object.Subject, object.Header, object.Data, err); err != nil {
			return m, nil, err
		}
		return wire.Message{Node: d.node, Key: m.Key, Sequence: m.Sequence}, nil, nil
	}
	if object.Size == 0 {
		return m, nil, nil
	}
	same := reply.StreamEpoch == d.store.Cursor().StreamEpoch
	if same && d.store.Holds(m) {
		return wire.Message{Node: d.node, Key: m.Key, Sequence: m.Sequence}, nil, nil
	}
	awaited := &pendingObject{
		epoch: reply.StreamEpoch, subject: object.Subject, key: m.Key, sequence: m.Sequence, header: object.Header, size: object.Size,
	}
	if old := d.currentProgress().pending[m.Key]; old != nil && old.epoch == awaited.epoch && old.sequence == awaited.sequence {
		return m, old, nil
	}
	if d.store.Cursor().StreamEpoch == "" && absenceMeansDeleted(m.Key) {
		m, err := d.prefetchPayload(ctx, awaited)
		return m, nil, err
	}
	return m, awaited, nil
}

// absenceMeansDeleted reports whether the node takes the absence of such an object as proof that it does not exist: a kubelet terminates
// the pods that its API does not list. A store that has just become complete must hold these objects.
func absenceMeansDeleted(key wire.Key) bool {
	return key.Group == "" && (key.Resource == "pods" || key.Resource == "nodes")
}

// prefetchPayload fetches a payload before the attach ends. The bytes received before a fault are kept for the next attach.
func (d *Delivery) prefetchPayload(ctx context.Context, m *pendingObject) (wire.Message, error) {
	if old := d.prefetched[m.key]; old != nil && old.epoch == m.epoch && old.sequence == m.sequence {
		m = old
	}
	if d.prefetched == nil {
		d.prefetched = map[wire.Key]*pendingObject{}
	}
	d.prefetched[m.key] = m
	for m.missingBytes() > 0 {
		if err := d.requestPiece(ctx, m); err != nil {
			return wire.Message{}, err
		}
	}
	return d.decodePending(ctx, m)
}
