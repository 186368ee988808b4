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

// attacher lists the desired state of the node in the cloud. One goroutine at a time uses it.
type attacher struct {
	parts
	fetcher *pieceFetcher
	// instance is sent with each attach.
	instance string
	// deadServers receives the names of dead hub servers.
	deadServers <-chan string
	// prefetched are the payloads that an attach fetches before it ends.
	prefetched map[wire.Key]*pendingObject
}

// attach lists the desired state: it brings the store up to the end of the snapshot, except for payloads to be fetched in pieces, and
// returns the last page.
func (a *attacher) attach(ctx context.Context, everything bool) (wire.AttachReply, error) {
	cursor, err := a.saver.resumeCursor(ctx)
	if err != nil {
		return wire.AttachReply{}, err
	}
	select {
	case <-a.deadServers: // before the first request
	default:
	}
	request := wire.AttachRequest{Cursor: cursor, Full: everything, Instance: a.instance}
	var first *wire.AttachReply
	var full deliveryBatch
	marked, seen := false, map[string]struct{}{}
	for {
		request.MaxBytes, request.PayloadsPending = a.bandwidth.Budget(), len(full.pending)+len(a.saver.current().pending) > 0
		reply, err := a.requestPage(ctx, request)
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
		page, held, err := a.readPage(ctx, reply)
		if err != nil {
			return reply, err
		}
		marked = marked || held
		if reply.Full {
			full.messages, full.pending = append(full.messages, page.messages...), append(full.pending, page.pending...)
		} else if err := a.saver.saveBatch(ctx, page); err != nil {
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
			if err := a.saveSnapshot(ctx, reply, full, len(seen), marked); err != nil {
				return reply, err
			}
		}
		a.log.Info("attached", zap.Bool("full", reply.Full), zap.Uint64("seq", reply.UpTo), zap.Int("awaited", len(a.saver.current().pending)))
		return reply, nil
	}
}

// saveSnapshot saves a full snapshot after checking that it is complete.
func (a *attacher) saveSnapshot(ctx context.Context, last wire.AttachReply, full deliveryBatch, subjects int, marked bool) error {
	switch {
	case subjects < last.Subjects:
		return fmt.Errorf("the snapshot has %d objects of %d: it comes from a replica that lags behind", subjects, last.Subjects)
	case last.MarkerRequired && !marked:
		return errors.New("the snapshot comes from a replica that lags behind")
	}
	if err := a.saver.acquire(ctx); err != nil {
		return err
	}
	defer a.saver.release()
	full.sequence = last.UpTo
	next := deliveryProgress{epoch: last.StreamEpoch}.applyBatch(full)
	messages := full.messages
	for _, m := range next.pending { // the store keeps its versions until the payloads are there
		messages = append(messages, wire.Message{Node: a.node, Key: m.key, Sequence: m.sequence})
	}
	if err := a.saver.store.Replace(ctx, messages, last.StreamEpoch, next.safeCursor()); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	a.saver.setProgress(next)
	a.prefetched = nil
	failpoint.At("attach.replaced")
	a.saver.observeLatency(full.messages)
	return nil
}

// requestPage requests one page of the snapshot.
func (a *attacher) requestPage(ctx context.Context, request wire.AttachRequest) (wire.AttachReply, error) {
	var reply wire.AttachReply
	asked := time.Now()
	if err := a.callAttach(ctx, request, &reply); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			a.bandwidth.ObserveTimeout()
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
	a.bandwidth.ObserveReply(size, time.Since(asked))
	return reply, nil
}

// callAttach sends the call of an attach. When a cloudcore or a hub server has died, the request may have been lost with it and would
// never be answered, so callAttach sends it again.
func (a *attacher) callAttach(ctx context.Context, request wire.AttachRequest, reply *wire.AttachReply) error {
	for {
		cctx, cancel := context.WithCancelCause(ctx)
		var g errgroup.Group
		g.Go(func() error {
			select {
			case <-a.deadServers:
				cancel(errServerDied)
			case <-cctx.Done():
			}
			return nil
		})
		err := call.Call(cctx, a.nc, a.node, subject.VerbAttach, request, reply)
		cancel(nil)
		if wait := g.Wait(); wait != nil {
			return wait
		}
		if err == nil || !errors.Is(context.Cause(cctx), errServerDied) {
			return err
		}
		a.log.Info("asking again", zap.NamedError("because", errServerDied))
	}
}

// readPage decodes a page and reports whether it contains the snapshot marker. A malformed message goes to the dead letters and stays in
// the page without an operation.
func (a *attacher) readPage(ctx context.Context, reply wire.AttachReply) (h deliveryBatch, marked bool, err error) {
	h.sequence = reply.UpTo
	if reply.Continue != 0 {
		h.sequence = reply.Continue - 1
	}
	for _, object := range reply.Objects {
		a.metrics.Delivered.Inc()
		m, awaited, err := a.readObject(ctx, reply, object)
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
func (a *attacher) readObject(ctx context.Context, reply wire.AttachReply, object wire.SnapshotObject) (wire.Message, *pendingObject, error) {
	var m wire.Message
	var err error
	if object.Size > 0 {
		m, err = envelope.DecodeHeader(object.Subject, object.Header)
		if err == nil && object.Size > topology.MaxMessage {
			err = envelope.PermanentErrorf("payload of %d bytes, at most %d", object.Size, topology.MaxMessage)
		}
	} else {
		m, err = a.codec.Decode(object.Subject, object.Header, object.Data)
	}
	if err == nil && m.Node != a.node {
		err = envelope.PermanentErrorf("message of node %.120q", m.Node)
	}
	m.Sequence = object.Sequence
	if err != nil {
		if err := a.deadLetters.Put(ctx, subject.Desired, object.Subject, object.Header, object.Data, err); err != nil {
			return m, nil, err
		}
		return wire.Message{Node: a.node, Key: m.Key, Sequence: m.Sequence}, nil, nil
	}
	if object.Size == 0 {
		return m, nil, nil
	}
	same := reply.StreamEpoch == a.saver.store.Cursor().StreamEpoch
	if same && a.saver.store.Holds(m) {
		return wire.Message{Node: a.node, Key: m.Key, Sequence: m.Sequence}, nil, nil
	}
	awaited := &pendingObject{
		epoch: reply.StreamEpoch, subject: object.Subject, key: m.Key, sequence: m.Sequence, header: object.Header, size: object.Size,
	}
	if old := a.saver.current().pending[m.Key]; old != nil && old.epoch == awaited.epoch && old.sequence == awaited.sequence {
		return m, old, nil
	}
	if a.saver.store.Cursor().StreamEpoch == "" && absenceMeansDeleted(m.Key) {
		m, err := a.prefetchPayload(ctx, awaited)
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
func (a *attacher) prefetchPayload(ctx context.Context, m *pendingObject) (wire.Message, error) {
	if old := a.prefetched[m.key]; old != nil && old.epoch == m.epoch && old.sequence == m.sequence {
		m = old
	}
	if a.prefetched == nil {
		a.prefetched = map[wire.Key]*pendingObject{}
	}
	a.prefetched[m.key] = m
	for m.missingBytes() > 0 {
		if err := a.fetcher.requestPiece(ctx, m); err != nil {
			return wire.Message{}, err
		}
	}
	return a.fetcher.decodePending(ctx, m)
}
