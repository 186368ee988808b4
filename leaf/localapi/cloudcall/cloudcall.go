// Package cloudcall asks the cloud for answers and decisions that the gateway cannot or may not give.
package cloudcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// Upstream asks the cloud for answers and decisions that the gateway cannot or may not give.
type Upstream interface {
	// Do performs one request as the node. An error means that the cloud could not be asked; the answer of Kubernetes, a
	// refusal included, is in the reply. The caller keeps the request's bytes. Concurrent calls are allowed.
	Do(ctx context.Context, request wire.KubeRequest) (wire.KubeReply, error)
}

// callTimeout limits a call: a mobile link's round trip and the apiserver's work fit many times, and a kubelet that waits
// longer would do better to retry.
const callTimeout = 20 * time.Second

// maxConcurrentCalls limits the calls of programs that wait for the cloud at once. The cloud accepts 64 of a node, and the
// kubelet has its own.
const maxConcurrentCalls = 32

// errTokenRequired is for programs that the gateway identifies by their certificate: the cloud cannot verify that identity.
var errTokenRequired = errors.New("the cloud takes requests of a program at a gateway only with a token, and this one came with a certificate")

// Client performs calls to the cloud for the callers of the local API. Its methods may be called concurrently.
type Client struct {
	upstream Upstream
	slots    chan struct{} // a token for each call of a program other than the node
}

// New creates a Client.
func New(up Upstream) *Client {
	return &Client{upstream: up, slots: make(chan struct{}, maxConcurrentCalls)}
}

// Call performs a call for the caller of ctx after it has acquired a slot. Its error is an *unreachableError, or a refusal.
func (c *Client) Call(ctx context.Context, request wire.KubeRequest) (wire.KubeReply, error) {
	if !caller.Of(ctx).Trusted {
		leave, err := c.AcquireSlot(ctx)
		if err != nil {
			return wire.KubeReply{}, err
		}
		defer leave()
	}
	return c.Send(ctx, request, callTimeout)
}

// Send sends a request with the token of the caller of ctx, or as the node.
func (c *Client) Send(ctx context.Context, request wire.KubeRequest, timeout time.Duration) (wire.KubeReply, error) {
	if who := caller.Of(ctx); !who.Trusted {
		if who.Token == "" {
			return wire.KubeReply{}, apierrors.NewForbidden(schema.GroupResource{}, "", errTokenRequired)
		}
		request.Token = who.Token
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := c.upstream.Do(ctx, request)
	switch {
	case err != nil:
		return reply, respond.Unreachable(err)
	case reply.Code == 0 && reply.Error != "":
		return reply, respond.Unreachable(errors.New(reply.Error))
	case reply.Code < 200 || reply.Code > 599:
		return reply, respond.Unreachable(fmt.Errorf("reply with code %d", reply.Code))
	}
	return reply, nil
}

// AcquireSlot waits for a slot for a program's call to the cloud; the kubelet never waits for programs. leave frees the slot.
func (c *Client) AcquireSlot(ctx context.Context) (leave func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-ctx.Done():
		return nil, respond.Unreachable(ctx.Err())
	}
}

// Object performs a request in JSON and decodes the answer into out; a refusal is returned as Kubernetes' status error.
func (c *Client) Object(ctx context.Context, method, path string, body any, out runtime.Object) error {
	request := wire.KubeRequest{Method: method, Path: path, Accept: runtime.ContentTypeJSON}
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode call: %w", err)
		}
		request.Body, request.ContentType = data, runtime.ContentTypeJSON
	}
	return c.Decode(ctx, request, out)
}

// Decode performs a request and decodes the answer into out, if that is not nil.
func (c *Client) Decode(ctx context.Context, request wire.KubeRequest, out runtime.Object) error {
	reply, err := c.Call(ctx, request)
	if err != nil {
		return err
	}
	if reply.Code >= http.StatusBadRequest {
		return respond.StatusOf(reply)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Body, out); err != nil {
		return respond.Unreachable(fmt.Errorf("decode reply: %w", err))
	}
	return nil
}

// NewRequest returns a request of a client as one to the cloud.
func NewRequest(req *http.Request, body []byte) wire.KubeRequest {
	return wire.KubeRequest{
		Method: req.Method, Path: req.URL.Path, Query: req.URL.RawQuery,
		ContentType: req.Header.Get("Content-Type"), Accept: req.Header.Get("Accept"), Body: body,
	}
}
