// Package devicecall lets users call methods of devices: it decides who may, finds the gateway, and passes the call on through a tunnel.
//
// Each call has one outcome: the mapper's answer, or that it was not sent, or that it was sent and nobody knows. Nothing is sent twice. Every call that is
// judged is a line in the log.
package devicecall

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/api/devices"
)

// answerGrace is how much longer the gateway is waited for than the call may take: it says itself that the mapper did not answer in time.
const answerGrace = 3 * time.Second

// Access decides who may call.
type Access interface {
	IdentifyUser(ctx context.Context, r *http.Request) (authenticationv1.UserInfo, error)
	AuthorizeUser(ctx context.Context, user authenticationv1.UserInfo, on authorizationv1.ResourceAttributes) error
	// StatusCode returns the HTTP status of an error of the two.
	StatusCode(err error) int
}

// NodeOf returns the gateway of a Device, "" if it names none. The error is of the Kubernetes API.
type NodeOf func(ctx context.Context, id types.NamespacedName) (string, error)

// Dial opens a stream to the part for devices of a gateway. user is logged on both ends.
type Dial func(ctx context.Context, node, user string) (net.Conn, error)

// Handler serves devicecall.Path.
type Handler struct {
	access Access
	nodeOf NodeOf
	dial   Dial
	log    *zap.Logger
}

// New returns the handler.
func New(access Access, nodeOf NodeOf, dial Dial, log *zap.Logger) *Handler {
	return &Handler{access: access, nodeOf: nodeOf, dial: dial, log: log}
}

// Pattern is the pattern of the handler for a http.ServeMux.
const Pattern = "POST " + devicecall.Path + "/{namespace}/{name}"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	user, err := h.authorize(r.Context(), r, id)
	if err != nil {
		code := h.access.StatusCode(err)
		h.log.Info("device method not called", zap.String("user", user), zap.Stringer("device", id), zap.Int("code", code), zap.Error(err))
		http.Error(w, err.Error(), code)
		return
	}
	var request devicecall.Request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, devicecall.MaxRequest)).Decode(&request); err != nil {
		http.Error(w, "the request is unreadable: "+err.Error(), http.StatusBadRequest)
		return
	}
	timeout := time.Duration(request.Milliseconds) * time.Millisecond
	if timeout <= 0 || timeout > devicecall.MaxTimeout {
		http.Error(w, fmt.Sprintf("milliseconds: from 1 to %d", devicecall.MaxTimeout.Milliseconds()), http.StatusBadRequest)
		return
	}
	answer := h.call(r.Context(), id, user, request, timeout)
	h.log.Info("device method called", zap.String("user", user), zap.Stringer("device", id), zap.String("node", answer.Node), zap.String("method", request.Method),
		zap.String("property", request.Property), zap.String("value", clip(request.Value)), zap.String("outcome", string(answer.Outcome)),
		zap.Int("status", answer.Status), zap.String("reason", answer.Reason), zap.Duration("took", time.Since(began)))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client is gone
}

func (h *Handler) authorize(ctx context.Context, r *http.Request, id types.NamespacedName) (user string, err error) {
	who, err := h.access.IdentifyUser(ctx, r)
	if err != nil {
		return "", err
	}
	return who.Username, h.access.AuthorizeUser(ctx, who, authorizationv1.ResourceAttributes{
		Verb: "create", Group: devices.Group, Version: devices.Version, Resource: devices.DevicesResource, Subresource: devicecall.Subresource,
		Namespace: id.Namespace, Name: id.Name,
	})
}

func notSent(node, format string, args ...any) devicecall.Answer {
	return devicecall.Answer{Outcome: devicecall.NotSent, Node: node, Reason: fmt.Sprintf(format, args...)}
}

func (h *Handler) call(ctx context.Context, id types.NamespacedName, user string, request devicecall.Request, timeout time.Duration) devicecall.Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	node, err := h.nodeOf(ctx, id)
	switch {
	case apierrors.IsNotFound(err):
		return devicecall.Answer{Outcome: devicecall.Refused, Reason: fmt.Sprintf("there is no Device %s", id)}
	case err != nil:
		return notSent("", "read Device %s: %v", id, err)
	case node == "":
		return notSent("", "Device %s names no gateway", id)
	}
	conn, err := h.dial(ctx, node, user)
	if err != nil {
		return notSent(node, "gateway not reached: %v", err)
	}
	defer func() { _ = conn.Close() }() // all was read, or is given up
	answer := exchange(ctx, conn, &devicecall.EdgeRequest{Request: request, Namespace: id.Namespace, Name: id.Name, User: user})
	answer.Node = node
	return answer
}

// exchange sends the request and reads the answer. From the first byte on the mapper may have got the call.
func exchange(ctx context.Context, conn net.Conn, request *devicecall.EdgeRequest) devicecall.Answer {
	unknown := func(err error) devicecall.Answer {
		return devicecall.Answer{Outcome: devicecall.Unknown, Reason: "sent to the gateway, which did not answer: " + err.Error()}
	}
	deadline, ok := ctx.Deadline()
	left := time.Until(deadline)
	if !ok || left <= 0 {
		return notSent("", "the time was over before the call was sent")
	}
	request.Milliseconds = max(left.Milliseconds(), 1)
	body, err := json.Marshal(request)
	if err != nil {
		return notSent("", "encode: %v", err)
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway"+devicecall.EdgePath, bytes.NewReader(body))
	if err != nil {
		return notSent("", "%v", err)
	}
	out.Close = true
	if err := conn.SetDeadline(deadline.Add(answerGrace)); err != nil {
		return notSent("", "%v", err)
	}
	if err := out.Write(conn); err != nil {
		return unknown(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), out)
	if err != nil {
		return unknown(err)
	}
	defer func() { _ = response.Body.Close() }() // the connection is closed, too
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return unknown(err)
	}
	if response.StatusCode != http.StatusOK { // edgecore does not call before it understands
		return notSent("", "the gateway refuses: %s %s", response.Status, clip(string(raw)))
	}
	var answer devicecall.Answer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return unknown(err)
	}
	return checked(answer)
}

// maxAnswer bounds what is read of a gateway, which may be stolen: a body in base64, and the rest.
const maxAnswer = 2*devicecall.MaxBody + 64<<10

// errStrange reports an answer that no edgecore gives.
var errStrange = errors.New("the gateway's answer makes no sense")

// checked returns an answer with what the fields may have.
func checked(a devicecall.Answer) devicecall.Answer {
	switch a.Outcome {
	case devicecall.Answered:
		if a.Status >= 100 && a.Status <= 999 && len(a.Body) <= devicecall.MaxBody {
			return a
		}
	case devicecall.Refused, devicecall.NotSent, devicecall.Unknown:
		return devicecall.Answer{Outcome: a.Outcome, Reason: clip(a.Reason)}
	}
	return devicecall.Answer{Outcome: devicecall.Unknown, Reason: errStrange.Error()}
}

// clip shortens a text for the log and for people.
func clip(s string) string {
	const longest = 512
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}
