// Package call carries requests and their replies over subjects: calls of nodes to any cloudcore (Server, Call), commands of the cloud to
// a node, requests to report an object again, and heartbeats. Nothing here is durable: a call that gets no reply is made again.
package call

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// callWorkers is the number of calls that one cloudcore serves at once; most of them wait for the apiserver.
	callWorkers = 64
	// callQueue holds calls that arrive while all workers are busy; further calls are dropped and the node asks again.
	callQueue = 4096
	// maxCallsPerNode limits the calls of one node that wait or are served, maxBytesPerNode their total size; further calls are refused.
	// callWorkersPerNode limits how many of them are served at a time.
	maxCallsPerNode    = 64
	callWorkersPerNode = 8
	// maxWatchCalls and maxWatchCallsPerNode limit the calls of VerbWatch that one cloudcore serves at once, in total and per node. Each
	// takes a goroutine and a stream of the connection to the apiserver, some 20 kB, but no worker, because it waits.
	maxWatchCalls        = 4096
	maxWatchCallsPerNode = 64
	// maxRequest bounds a call: a Kubernetes request body is at most 3 MiB, and base64 in JSON makes it a third longer.
	maxRequest = 5 * topology.MiB
	// maxWatch bounds a call of VerbWatch: a path, a query and a token.
	maxWatch = 64 << 10
	// cloudQueueGroup is the queue group of all cloudcores: one of them answers.
	cloudQueueGroup = "cloudcore"

	// UnknownVerbFormat is the reply of a cloudcore that is older than the caller.
	UnknownVerbFormat = "verb %.40q is unknown"

	// WatchCallTimeout is how long a node waits for the reply to a call of VerbWatch. The longest wait that a node may request is well
	// below it: this timeout alone tells a node that its cloudcore was killed.
	WatchCallTimeout = 25 * time.Second

	planeCall      subject.Plane = "call"
	planeHeartbeat subject.Plane = "beat"
)

// Handler answers one verb. It returns the payload of the reply; an error that wraps wire.ErrPermanent reports a malformed request.
// The context ends when the node would no longer wait.
type Handler func(ctx context.Context, node string, request []byte) (any, error)

// Server answers the calls of nodes on call.cloud.<node>.<verb>. Any cloudcore may answer any call.
type Server struct {
	nc          *nats.Conn
	handlers    map[string]Handler
	deadLetters *envelope.DeadLetterStore
	metrics     *metrics.Metrics
	log         *zap.Logger
}

// NewServer returns a Server; handlers maps each verb to its handler.
func NewServer(nc *nats.Conn, handlers map[string]Handler, metrics *metrics.Metrics, log *zap.Logger) (*Server, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("calls: %w", err)
	}
	return &Server{
		nc: nc, handlers: handlers, metrics: metrics, log: log,
		deadLetters: &envelope.DeadLetterStore{Js: js, Sender: CloudSender, Metrics: metrics, Log: log},
	}, nil
}

// CloudSender is the sender of dead letters that a cloudcore stores.
const CloudSender = "cloud"

// Start serves calls until ctx ends, answers the calls in progress and returns nil.
func (c *Server) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, callQueue)
	sub, err := c.nc.ChanQueueSubscribe(subject.CallPrefix+subject.AllNodes+".*", cloudQueueGroup, incoming)
	if err != nil {
		return fmt.Errorf("serve calls: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	g, gctx := errgroup.WithContext(ctx)
	long := &keyedSemaphore{limit: maxWatchCalls, limitPerNode: maxWatchCallsPerNode, acquired: map[string]int{}}
	held := flow.NewFairQueue[*nats.Msg](callQueue, maxCallsPerNode, callWorkersPerNode)
	stop := context.AfterFunc(gctx, held.Close)
	defer stop()
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return nil
			case msg := <-incoming:
				c.admitCall(gctx, g, msg, held, long)
			}
		}
	})
	for range callWorkers {
		g.Go(func() error {
			for {
				msg, ok := held.Pop()
				if !ok {
					return nil
				}
				c.serveCall(gctx, msg)
				held.Done(msg)
			}
		})
	}
	return g.Wait()
}

// admitCall queues a call for the workers, or has a watch call served in g. It refuses a call that is too large or exceeds the limits of
// its node before the call takes memory.
func (c *Server) admitCall(ctx context.Context, g *errgroup.Group, msg *nats.Msg, held *flow.FairQueue[*nats.Msg], long *keyedSemaphore) {
	node, size, most := flow.SubjectToken(msg.Subject, 2), flow.MemorySize(msg.Header, msg.Data), maxRequest
	lasts := verbOf(msg) == subject.VerbWatch
	if lasts {
		most = maxWatch
	}
	switch {
	case size > most:
		c.rejectCall(msg, "large", fmt.Sprintf("request of %d bytes, at most %d", size, most))
	case lasts && long.tryAcquire(node):
		g.Go(func() error {
			defer long.release(node)
			c.serveCall(ctx, msg)
			return nil
		})
	case lasts:
		c.rejectCall(msg, "busy", fmt.Sprintf(tooManyCallsFormat, maxWatchCallsPerNode))
	case !held.Push(flow.ItemOrigin{Node: node, Size: size}, msg):
		c.rejectCall(msg, "busy", fmt.Sprintf(tooManyCallsFormat, maxCallsPerNode))
	}
}

// keyedSemaphore limits the calls that no worker serves, in total and per node.
type keyedSemaphore struct {
	limit, limitPerNode int

	mu       sync.Mutex     // guards all below
	acquired map[string]int // by node
	total    int
}

func (s *keyedSemaphore) tryAcquire(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.limit || s.acquired[node] >= s.limitPerNode {
		return false
	}
	s.total++
	s.acquired[node]++
	return true
}

func (s *keyedSemaphore) release(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.acquired[node]--; s.acquired[node] == 0 {
		delete(s.acquired, node)
	}
}

// verbOf returns the last token of a call's subject.
func verbOf(msg *nats.Msg) string { return msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:] }

// tooManyCallsFormat is the reply to a node that has reached its limit of calls, by number or by bytes.
const tooManyCallsFormat = "%d calls of this node wait already, or fewer that are large"

// rejectCall answers a call that is not admitted.
func (c *Server) rejectCall(msg *nats.Msg, result, reason string) {
	c.metrics.Calls.WithLabelValues("", result).Inc()
	if node, err := subject.ParseCallSubject(msg.Subject); err == nil && strings.HasPrefix(msg.Reply, subject.InboxPrefix(node)+".") {
		c.sendReply(msg, ResultError{Error: reason})
	}
}

// serveCall answers one call. The subject alone identifies the caller. The reply goes to that node's own inbox or is not sent, because the
// caller chooses the reply subject and nats-server does not check it.
func (c *Server) serveCall(ctx context.Context, msg *nats.Msg) {
	node, err := subject.ParseCallSubject(msg.Subject)
	if err != nil {
		c.deadLetterCall(ctx, msg, envelope.PermanentErrorf("%v", err))
		return
	}
	verb := verbOf(msg)
	handle, known := c.handlers[verb]
	switch {
	case !known:
		c.deadLetterCall(ctx, msg, envelope.PermanentErrorf(UnknownVerbFormat, verb))
		return
	case !strings.HasPrefix(msg.Reply, subject.InboxPrefix(node)+"."):
		c.metrics.Calls.WithLabelValues(verb, "foreign-reply").Inc()
		c.log.Warn("call with a foreign reply subject not answered", zap.String("node", node), zap.String("subject", envelope.SanitizeText(msg.Subject)))
		return
	}
	timeout := CallTimeout
	if verb == subject.VerbWatch {
		timeout = WatchCallTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := handle(ctx, node, msg.Data)
	if err != nil {
		if errors.Is(err, wire.ErrPermanent) {
			c.deadLetterCall(ctx, msg, err)
			return
		}
		c.metrics.Calls.WithLabelValues(verb, "error").Inc()
		c.log.Warn("call failed", zap.String("node", node), zap.String("verb", verb), zap.Error(err))
		c.sendReply(msg, ResultError{Error: err.Error()})
		return
	}
	c.metrics.Calls.WithLabelValues(verb, "ok").Inc()
	c.sendReply(msg, reply)
}

// RawReply is a reply whose payload is sent unchanged. Its headers distinguish it from a callError.
type RawReply struct {
	Header nats.Header
	Data   []byte
}

// ResultError is the error that any reply can carry instead of its own fields.
type ResultError struct {
	Error string `json:"error"`
}

// deadLetterCall answers a malformed call with the reason and stores it as a dead letter. A call is not durable, so a dead letter that
// cannot be stored is only logged.
func (c *Server) deadLetterCall(ctx context.Context, msg *nats.Msg, reason error) {
	c.metrics.Calls.WithLabelValues("", "garbage").Inc()
	data := msg.Data
	switch verbOf(msg) {
	case subject.VerbAttach, subject.VerbPiece, subject.VerbPing, subject.VerbScopes:
	default:
		// The call may hold a token, a key, a Secret or a part of one. They have no place in a stream that many can read.
		data = fmt.Appendf(nil, "withheld: %d bytes, sha256 %x", len(data), sha256.Sum256(data))
	}
	if err := c.deadLetters.Put(ctx, planeCall, msg.Subject, msg.Header, data, reason); err != nil {
		c.log.Warn("call refused", zap.NamedError("reason", reason), zap.Error(err))
	}
	if node, err := subject.ParseCallSubject(msg.Subject); err == nil && strings.HasPrefix(msg.Reply, subject.InboxPrefix(node)+".") {
		c.sendReply(msg, ResultError{Error: reason.Error()})
	}
}

func (c *Server) sendReply(msg *nats.Msg, reply any) {
	var err error
	switch r := reply.(type) {
	case RawReply:
		err = msg.RespondMsg(&nats.Msg{Header: r.Header, Data: r.Data})
	default:
		var body []byte
		if body, err = json.Marshal(reply); err == nil {
			err = msg.Respond(body)
		}
	}
	if err != nil {
		c.log.Warn("call not answered", zap.String("subject", msg.Subject), zap.Error(err))
	}
}

// DecodeRequest decodes a call's JSON strictly enough to detect malformed requests: it must be one JSON object.
func DecodeRequest(data []byte, into any) error {
	if err := envelope.CheckObject(data); err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return envelope.PermanentErrorf("%v", err)
	}
	return nil
}

// Call sends a node's call to the cloud and decodes the reply. It returns wire.ErrOffline if there was no answer: the link is down, or no
// cloudcore is running.
func Call(ctx context.Context, nc *nats.Conn, node, verb string, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("call %s: %w", verb, err)
	}
	timeout := CallTimeout
	if verb == subject.VerbWatch {
		timeout = WatchCallTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, subject.CallSubject(node, verb), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("call %s: %w: %w", verb, wire.ErrOffline, err)
	case err != nil:
		return fmt.Errorf("call %s: %w", verb, err)
	}
	if err := json.Unmarshal(msg.Data, reply); err != nil {
		return fmt.Errorf("call %s: answer: %w", verb, err)
	}
	return nil
}

// Probe makes one round trip to the hub's JetStream on a subject that the node may use. Any reply proves the path in both directions,
// including the reply that the consumer is unknown.
func Probe(ctx context.Context, nc *nats.Conn, node string) error {
	_, err := nc.RequestWithContext(ctx, subject.ConsumerSubject(node, "info"), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil // the link is up but JetStream behind it is not: redialling would not help
	}
	return err
}
