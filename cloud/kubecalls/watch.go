package kubecalls

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
)

const (
	// watchBatchWindow is how long a watch continues after its first change: changes that come together are in one
	// answer, and a node asks ten times a second at most.
	watchBatchWindow = 100 * time.Millisecond
	// watchMaxWait is the longest time that a watch waits for its first change; the answer has a few seconds more to
	// reach the node.
	watchMaxWait = call.WatchCallTimeout - 5*time.Second
	// watchMaxBytes is the size of one answer for a node without a limit of its own: the next call continues after the
	// last change in it.
	watchMaxBytes = 256 << 10
	// singleEventBytes is the size of one event that a node gets even if its limit is lower: 32 KiB on the link, 5 s at 50 kbit/s.
	singleEventBytes = 24 << 10
	// bookmarkWait is how long after the wait the apiserver's bookmark may come: up to 1.2 s were measured.
	bookmarkWait = 1500 * time.Millisecond
	// watchStartTimeout is how long an apiserver may take to start a watch, before the wait begins.
	watchStartTimeout = 3 * time.Second
)

// Watch is the call.Handler of subject.VerbWatch: it returns the next changes in a collection, as the bearer of
// the request's token may see them. Kubernetes authorizes each call anew, so a right that is revoked ends a watch at its next call.
func (k *Server) Watch(ctx context.Context, node string, request []byte) (any, error) {
	var req wire.KubeRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return nil, err
	}
	if err := validateWatch(req); err != nil {
		return denialReply(err), nil
	}
	req, err := k.guard.restrictRequest(node, req)
	if err != nil {
		return refusalReply(err), nil
	}
	query, err := url.ParseQuery(req.Query)
	if err != nil {
		return denialReply(err), nil
	}
	wait := min(time.Duration(max(req.Wait, 0))*time.Millisecond, watchMaxWait)
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	// Two seconds before its end, or a little later, the apiserver sends a bookmark, so that a watch without changes
	// also makes progress.
	query.Set("timeoutSeconds", strconv.Itoa(int(wait/time.Second)+2))
	req.Query, req.Accept = query.Encode(), runtime.ContentTypeJSON
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := time.AfterFunc(watchStartTimeout+wait, cancel)
	defer begun.Stop()
	resp, err := k.sendRequest(ctx, node, req)
	if err != nil {
		return wire.KubeReply{Error: "ask the apiserver: " + err.Error()}, nil
	}
	defer func() { _ = resp.Body.Close() }() // the watch is abandoned
	reply := wire.KubeReply{Code: resp.StatusCode, ContentType: resp.Header.Get("Content-Type")}
	if resp.StatusCode != http.StatusOK {
		reply.Body, err = io.ReadAll(io.LimitReader(resp.Body, watchMaxBytes))
		if err != nil {
			return wire.KubeReply{Error: "read the apiserver's answer: " + err.Error()}, nil
		}
		return reply, nil
	}
	if wait >= time.Second {
		wait += bookmarkWait
	}
	begun.Reset(wait)
	reply.Body, err = readEvents(resp.Body, req.MaxBytes, func() { begun.Reset(watchBatchWindow) })
	if apierrors.IsRequestEntityTooLargeError(err) {
		return denialReply(err), nil
	}
	if err != nil && ctx.Err() == nil && len(reply.Body) == 0 {
		return wire.KubeReply{Error: "read the apiserver's watch: " + err.Error()}, nil
	}
	return reply, nil
}

// replyLimits returns the reply size that is enough for a node with this limit, and the maximum size for a single
// event, which cannot be split.
func replyLimits(take int) (enough, most int) {
	if take <= 0 {
		return watchMaxBytes, maxReply
	}
	enough = min(take/4*3, watchMaxBytes) // base64 enlarges it by a third
	return enough, max(enough, singleEventBytes)
}

func tooLargeError(what string, size, take int) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s of %d bytes is more than the gateway's slow link takes in one (%d at a time)", what, size, take))
}

// readEvents reads whole events until the watch ends or they are enough for a node with this limit. first is called
// after the first event. The error is an API status if that event is too large for the node.
func readEvents(watch io.Reader, take int, first func()) ([]byte, error) {
	enough, most := replyLimits(take)
	limited := &io.LimitedReader{R: watch, N: maxReply}
	from := json.NewDecoder(limited)
	var all bytes.Buffer
	for all.Len() < enough {
		var event json.RawMessage
		err := from.Decode(&event)
		switch {
		case errors.Is(err, io.EOF):
			return all.Bytes(), nil
		case err != nil && limited.N <= 0:
			return all.Bytes(), fmt.Errorf("a change is longer than %d bytes", maxReply)
		case err != nil:
			return all.Bytes(), err
		}
		switch {
		case all.Len() > 0 && all.Len()+len(event) > enough:
			return all.Bytes(), nil // the next call returns it
		case len(event) > most:
			return nil, tooLargeError("a change", len(event), take)
		case all.Len() == 0:
			first()
		}
		all.Write(event)
		all.WriteByte('\n')
	}
	return all.Bytes(), nil
}

// validateWatch refuses requests that are not a watch by a program at a node.
func validateWatch(req wire.KubeRequest) error {
	switch {
	case req.Method != http.MethodGet || len(req.Body) > 0:
		return fmt.Errorf("a watch is a GET without a body, not %.20q", req.Method)
	case req.Token == "":
		return errors.New("a watch without a token: nodes have what they watch in their store")
	case targetsEndpoints(req):
		return errEndpointsWatched
	}
	return validateCall(req)
}
