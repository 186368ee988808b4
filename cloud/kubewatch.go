package cloud

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
	"github.com/frond-edge/frond/streams"
)

const (
	// watchBatchWindow is for how long a watch goes on after its first change: what comes together goes in one answer, and a node asks
	// ten times a second at most.
	watchBatchWindow = 100 * time.Millisecond
	// watchMaxWait is the longest that a watch waits for its first change; the answer has a few seconds more to reach the node.
	watchMaxWait = streams.WatchCallTimeout - 5*time.Second
	// watchMaxBytes is what one answer holds for a node that takes everything: the next call goes on after the last change in it.
	watchMaxBytes = 256 << 10
	// singleEventBytes is what a node gets in one even if its link takes less at a time: 32 KiB on the link, 5 s at 50 kbit/s.
	singleEventBytes = 24 << 10
	// bookmarkWait is how long after the wait the apiserver's bookmark may come: up to 1.2 s were seen.
	bookmarkWait = 1500 * time.Millisecond
	// watchStartTimeout is how long an apiserver may take to begin a watch, before the wait counts.
	watchStartTimeout = 3 * time.Second
)

// Watch is the streams.CallHandler of streams.VerbWatch: what changes in a collection next, as the bearer of the request's token may
// see it. Each call is judged by Kubernetes anew, so a right that is taken away ends a watch with its next call.
func (k *kubeCalls) Watch(ctx context.Context, node string, request []byte) (any, error) {
	var req wire.KubeRequest
	if err := streams.DecodeRequest(request, &req); err != nil {
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
	// Two seconds before its end, or a little later, the apiserver sends a bookmark, so that a quiet watch makes progress, too.
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
	defer func() { _ = resp.Body.Close() }() // it is given up
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

// replyLimits is how many bytes of an answer are enough for a node that takes so many at a time, and how many it gets at most where that
// cannot be parted.
func replyLimits(take int) (enough, most int) {
	if take <= 0 {
		return watchMaxBytes, maxKubeReply
	}
	enough = min(take/4*3, watchMaxBytes) // base64 makes it a third longer
	return enough, max(enough, singleEventBytes)
}

func tooLargeError(what string, size, take int) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s of %d bytes is more than the gateway's slow link takes in one (%d at a time)", what, size, take))
}

// readEvents reads whole events until the watch is ended or enough are here for a node that takes so many bytes; first is called
// after the first one. Its error is a status if that one is too large for the node.
func readEvents(watch io.Reader, take int, first func()) ([]byte, error) {
	enough, most := replyLimits(take)
	limited := &io.LimitedReader{R: watch, N: maxKubeReply}
	from := json.NewDecoder(limited)
	var all bytes.Buffer
	for all.Len() < enough {
		var event json.RawMessage
		err := from.Decode(&event)
		switch {
		case errors.Is(err, io.EOF):
			return all.Bytes(), nil
		case err != nil && limited.N <= 0:
			return all.Bytes(), fmt.Errorf("a change is longer than %d bytes", maxKubeReply)
		case err != nil:
			return all.Bytes(), err
		}
		switch {
		case all.Len() > 0 && all.Len()+len(event) > enough:
			return all.Bytes(), nil // the next call brings it
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

// validateWatch refuses what is no watch of a program at a node.
func validateWatch(req wire.KubeRequest) error {
	switch {
	case req.Method != http.MethodGet || len(req.Body) > 0:
		return fmt.Errorf("a watch is a GET without a body, not %.20q", req.Method)
	case req.Token == "":
		return errors.New("a watch without a token: nodes have what they watch in their store")
	}
	return validateCall(req)
}
