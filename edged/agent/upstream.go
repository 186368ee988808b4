package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/subject"
)

// cloudUpstream sends requests to the cloud that the local API cannot answer.
type cloudUpstream struct {
	node string
	nc   *nats.Conn
	// isPending reports whether a newer state of an object is being fetched.
	isPending func(wire.Key) bool
}

// Do sends a request. It does not request an object that is being fetched in pieces: the answer would come as one piece,
// and block all other messages on the link meanwhile.
func (u cloudUpstream) Do(ctx context.Context, request wire.KubeRequest) (wire.KubeReply, error) {
	var reply wire.KubeReply
	if request.Method == http.MethodGet {
		if key, ok := parseObjectPath(request.Path); ok && u.isPending(key) {
			return reply, fmt.Errorf("%w: %s is large and on its way", wire.ErrOffline, key.Human())
		}
	}
	verb := subject.VerbKube
	if request.Wait > 0 {
		verb = subject.VerbWatch
	}
	if err := call.Call(ctx, u.nc, u.node, verb, request, &reply); err != nil {
		return reply, err
	}
	if reply.Code == 0 {
		return reply, fmt.Errorf("%w: %s", wire.ErrOffline, reply.Error)
	}
	return reply, nil
}

// parseObjectPath parses the path of one object in the Kubernetes API. A subresource or a collection has no key.
func parseObjectPath(path string) (wire.Key, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var key wire.Key
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:] // api, version
	case len(parts) > 3 && parts[0] == "apis":
		key.Group, parts = parts[1], parts[3:] // apis, group, version
	default:
		return key, false
	}
	if len(parts) == 4 && parts[0] == "namespaces" {
		key.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) != 2 { //nolint:mnd // resource and name
		return key, false
	}
	key.Resource, key.Name = parts[0], parts[1]
	return key, true
}
