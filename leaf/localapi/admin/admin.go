// Package admin serves the paths beside Kubernetes' own, for people and programs at the unix socket of a gateway: the contents of the
// store, and restarts of containers.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
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
	devices http.Handler
}

// New creates a Handler. Without a stopper, no path restarts containers; devices serves deviceview.Path, nil if there are none.
func New(st *store.Store, stopper ContainerStopper, devices http.Handler) *Handler {
	return &Handler{store: st, stopper: stopper, devices: devices}
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
	case req.TLS == nil && (path == deviceview.Path || strings.HasPrefix(path, deviceview.Path+"/")):
		h.serveDevices(w, req)
	default:
		return false
	}
	return true
}

// serveDevices hands a request over to the part for devices.
func (h *Handler) serveDevices(w http.ResponseWriter, req *http.Request) {
	if h.devices == nil {
		respond.Error(w, req, apierrors.NewServiceUnavailable("this gateway has no part for devices: switch devices.mqtt on in edgecore's configuration"))
		return
	}
	h.devices.ServeHTTP(w, req)
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

// restartPod stops containers so that the kubelet restarts them. The pod, its address and its volumes stay.
func (h *Handler) restartPod(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, restart.Path), "/")
	if req.Method != http.MethodPost || len(parts) != 3 || parts[2] != "restart" {
		respond.Error(w, req, apierrors.NewBadRequest("POST "+restart.Path+"NAMESPACE/NAME/restart is all there is"))
		return
	}
	pod, err := podproxy.LoadPod(h.store, parts[0], parts[1])
	var plan []restart.StoppedContainer
	if err == nil {
		plan, err = restartPlan(pod, req.URL.Query()["container"])
	}
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = max(*pod.Spec.TerminationGracePeriodSeconds, 1)
	}
	for i := range plan {
		seconds := grace
		if plan[i].Killed {
			seconds = 0
		}
		if plan[i].ID, err = h.stopper.Stop(req.Context(), pod.Namespace, pod.Name, plan[i].Container, seconds); err != nil {
			respond.Error(w, req, apierrors.NewInternalError(fmt.Errorf("stop container %s: %w", plan[i].Container, err)))
			return
		}
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(plan) // the client has gone away
}

// restartPlan returns the containers to stop, and how; it refuses a container that would not be restarted.
func restartPlan(pod *corev1.Pod, names []string) ([]restart.StoppedContainer, error) {
	policies := map[string]corev1.RestartPolicy{}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil {
			policies[c.Name] = corev1.RestartPolicy(*c.RestartPolicy) // a sidecar; other init containers have ended, and are not restarted
		}
	}
	var regular []string
	for _, c := range pod.Spec.Containers {
		regular = append(regular, c.Name)
		policies[c.Name] = pod.Spec.RestartPolicy
		if c.RestartPolicy != nil {
			policies[c.Name] = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	if len(names) == 0 {
		names = regular
	}
	var plan []restart.StoppedContainer
	for _, name := range names {
		policy, known := policies[name]
		switch {
		case !known:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s has no container %s that can be restarted; it has %s",
				pod.Name, name, strings.Join(regular, ", ")))
		case pod.DeletionTimestamp != nil:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s is being deleted", pod.Name))
		case policy == corev1.RestartPolicyNever:
			return nil, apierrors.NewBadRequest(fmt.Sprintf(
				"container %s of pod %s has the restart policy Never: it would end and not come back; nothing was done", name, pod.Name))
		case !slices.ContainsFunc(plan, func(s restart.StoppedContainer) bool { return s.Container == name }):
			plan = append(plan, restart.StoppedContainer{Container: name, Killed: policy == corev1.RestartPolicyOnFailure})
		}
	}
	return plan, nil
}
