package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
)

// StoreContents lists the objects in a gateway's store, as edgecore serves it on its unix socket.
type StoreContents struct {
	Cursor wire.Cursor `json:"cursor"`
	// Revision is the store's own version: a resourceVersion of the gateway's API, less 10^18.
	Revision uint64         `json:"revision"`
	Objects  []StoredObject `json:"objects"`
}

// StoredObject is one object without its content.
type StoredObject struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Version   string `json:"version"`
	Sequence  uint64 `json:"sequence"`
	Revision  uint64 `json:"revision"`
	Bytes     int    `json:"bytes"`
}

// Key returns the object's key.
func (o StoredObject) Key() wire.Key {
	return wire.Key{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}
}

// Store lists the objects of a gateway. The gateway itself answers, so it also works while the link is cut.
func (c *Cluster) Store(ctx context.Context, edge string) (StoreContents, error) {
	var s StoreContents
	if err := c.mustBeEdge(edge); err != nil {
		return s, err
	}
	return s, c.requestSocket(ctx, c.layout.edgeFiles(edge).apiSocket(), http.MethodGet, "/frond/store", &s)
}

// ErrNotInStore reports that a gateway's store does not hold an object.
var ErrNotInStore = errors.New("the gateway does not hold it")

// StoreGet returns one object as the gateway's Kubernetes API serves it, or ErrNotInStore. It checks the store first, because the
// API forwards requests for objects it does not hold to the cloud.
func (c *Cluster) StoreGet(ctx context.Context, edge string, key wire.Key) (json.RawMessage, error) {
	held, err := c.Store(ctx, edge)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(held.Objects, func(o StoredObject) bool { return o.Key() == key }) {
		return nil, fmt.Errorf("%s: %s: %w", edge, key.Human(), ErrNotInStore)
	}
	var object json.RawMessage
	return object, c.requestSocket(ctx, c.layout.edgeFiles(edge).apiSocket(), http.MethodGet, apiPath(key), &object)
}

// EdgeAPI returns the client configuration for a gateway's local API on its socket, with the rights of the socket's owner.
func (c *Cluster) EdgeAPI(edge string) *rest.Config {
	return &rest.Config{Host: "http://localhost", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.layout.edgeFiles(edge).apiSocket())
	}}
}

// apiPath is the path of an object in a Kubernetes API. Groups other than the core group use v1: the gateway serves all that it
// holds so.
func apiPath(k wire.Key) string {
	path := "/api/v1"
	if k.Group != "" {
		path = "/apis/" + url.PathEscape(k.Group) + "/v1"
	}
	if k.Namespace != "" {
		path += "/namespaces/" + url.PathEscape(k.Namespace)
	}
	return path + "/" + url.PathEscape(k.Resource) + "/" + url.PathEscape(k.Name)
}
