// Package admin serves the paths beside Kubernetes' own, for people and programs at the unix socket of a gateway: the contents of the
// store, and restarts of containers.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

const storePath = "/frond/store"

// ContainerStopper stops one running container; the kubelet restarts it according to its restart policy.
type ContainerStopper interface {
	// Stop returns the container's id, or "" if it does not run. grace is the grace time in seconds; 0 kills the container.
	// Concurrent calls are allowed.
	Stop(ctx context.Context, namespace, pod, container string, grace int64) (id string, err error)
}

// Handler serves the paths.
type Handler struct {
	store   *store.Store
	stopper ContainerStopper
}

// New creates a Handler. Without a stopper, no path restarts containers.
func New(st *store.Store, stopper ContainerStopper) *Handler {
	return &Handler{store: st, stopper: stopper}
}

// Serve serves a path, and reports whether it is one of this package.
func (h *Handler) Serve(w http.ResponseWriter, req *http.Request, path string) bool {
	switch {
	case path == storePath && req.TLS != nil: // it shows Secrets' names and more of the gateway's state than a TLS client needs
		respond.Error(w, req, apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("%s is for the unix socket", path)))
	case path == storePath:
		h.showStore(w)
	case req.TLS == nil && h.stopper != nil && strings.HasPrefix(path, restart.Path):
		h.restartPod(w, req)
	default:
		return false
	}
	return true
}

// StoreView is the answer of GET /frond/store: the objects that the gateway holds, without their contents.
type StoreView struct {
	Epoch    string       `json:"epoch"`
	Cursor   wire.Cursor  `json:"cursor"`
	Revision uint64       `json:"revision"`
	Objects  []ObjectView `json:"objects"`
}

// ObjectView is one object of a StoreView.
type ObjectView struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Version   string `json:"version,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Revision  uint64 `json:"revision"`
	Bytes     int    `json:"bytes"`
}

func (h *Handler) showStore(w http.ResponseWriter) {
	entries, revision := h.store.All()
	cursor := h.store.Cursor()
	view := StoreView{Epoch: cursor.StoreEpoch, Cursor: cursor, Revision: revision, Objects: make([]ObjectView, 0, len(entries))}
	for _, e := range entries {
		view.Objects = append(view.Objects, ObjectView{
			Group: e.Key.Group, Resource: e.Key.Resource, Namespace: e.Key.Namespace, Name: e.Key.Name,
			UID: e.UID, Version: e.Version, Sequence: e.Sequence, Revision: e.Revision, Bytes: len(e.Object),
		})
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(view) // the client has gone away
}
