package override

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/devicetwin"
)

const (
	// maxBody bounds a request: 60 values of the greatest length.
	maxBody = 256 << 10
	// maxBy bounds the name of who sets a value.
	maxBy = 64
	// answerTimeout bounds a change, also of a client that is gone: it is longer than one write to the store.
	answerTimeout = 15 * time.Second
)

// Source has the Devices of the gateway.
type Source interface {
	// Devices returns all of them, sorted by namespace and name.
	Devices() []deviceview.Device
	// Device returns a Device of this gateway with its model, which is nil if it is not there, and how it is shown. ok is false if there is none.
	Device(id types.NamespacedName) (device *devices.Device, model *devices.DeviceModel, view deviceview.Device, ok bool)
}

// Handler serves deviceview.Path. Who may call it is decided by the unix socket's mode.
type Handler struct {
	keeper *Keeper
	source Source
	log    *zap.Logger
	mux    *http.ServeMux
}

// NewHandler returns the handler.
func NewHandler(keeper *Keeper, source Source, log *zap.Logger) *Handler {
	h := &Handler{keeper: keeper, source: source, log: log, mux: http.NewServeMux()}
	const one = deviceview.Path + "/{namespace}/{name}"
	h.mux.HandleFunc("GET "+deviceview.Path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, h.source.Devices()) })
	h.mux.HandleFunc("GET "+one, func(w http.ResponseWriter, r *http.Request) { h.show(w, idOf(r)) })
	h.mux.HandleFunc("PUT "+one+"/"+deviceview.OverrideSuffix, h.set)
	h.mux.HandleFunc("DELETE "+one+"/"+deviceview.OverrideSuffix, h.end)
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

func idOf(r *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

func (h *Handler) show(w http.ResponseWriter, id types.NamespacedName) {
	_, _, view, ok := h.source.Device(id)
	if !ok {
		writeError(w, notFound(id))
		return
	}
	writeJSON(w, http.StatusOK, view)
}

func (h *Handler) set(w http.ResponseWriter, r *http.Request) {
	var request deviceview.OverrideRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&request); err != nil {
		writeError(w, apierrors.NewBadRequest("the request is unreadable: "+err.Error()))
		return
	}
	id := idOf(r)
	device, model, _, ok := h.source.Device(id)
	if !ok {
		writeError(w, notFound(id))
		return
	}
	if err := check(device, model, &request); err != nil {
		writeError(w, err)
		return
	}
	h.change(w, r, id, "set", request.By, func(ctx context.Context) error {
		return h.keeper.Set(ctx, id, device.UID, request.Values, time.Duration(request.Seconds)*time.Second, request.By)
	})
}

// check returns why a request is refused: with code 400 for its form, 422 for a value that the model does not allow.
func check(device *devices.Device, model *devices.DeviceModel, request *deviceview.OverrideRequest) error {
	switch {
	case len(request.Values) == 0:
		return apierrors.NewBadRequest("no value is given")
	case request.Seconds <= 0 || request.Seconds > deviceview.MaxOverrideSeconds:
		return apierrors.NewBadRequest(fmt.Sprintf("a value set on the gateway needs an end, after 1 to %d seconds", deviceview.MaxOverrideSeconds))
	case request.By == "" || len(request.By) > maxBy || strings.ContainsFunc(request.By, unicode.IsControl):
		return apierrors.NewBadRequest(fmt.Sprintf("by: who sets the value, 1 to %d bytes without control characters", maxBy))
	}
	for property, value := range request.Values {
		if err := devicetwin.CheckValue(device, model, property, value); err != nil {
			return &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: err.Error(),
			}}
		}
	}
	return nil
}

func (h *Handler) end(w http.ResponseWriter, r *http.Request) {
	id := idOf(r)
	device, _, view, ok := h.source.Device(id)
	if !ok {
		writeError(w, notFound(id))
		return
	}
	properties := r.URL.Query()["property"]
	active := map[string]bool{}
	for _, p := range view.Properties {
		active[p.Name] = p.Override != nil
	}
	for _, property := range properties {
		if !active[property] {
			writeError(w, apierrors.NewBadRequest(fmt.Sprintf("property %s of device %s is not set on the gateway", property, id)))
			return
		}
	}
	h.change(w, r, id, "ended", r.URL.Query().Get("by"), func(ctx context.Context) error { return h.keeper.End(ctx, id, device.UID, properties...) })
}

// change runs a change to its end, even if the client goes: it is done or not, never half.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, id types.NamespacedName, what, by string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), answerTimeout)
	defer cancel()
	if err := run(ctx); err != nil {
		h.log.Warn("values of a device not "+what+" on the gateway", zap.Stringer("device", id), zap.String("by", by), zap.Error(err))
		reason := metav1.StatusReasonServiceUnavailable
		if errors.Is(err, ErrUncertain) {
			reason = metav1.StatusReasonTimeout
		}
		writeError(w, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: reason, Message: err.Error(),
		}})
		return
	}
	h.log.Info("values of a device "+what+" on the gateway", zap.Stringer("device", id), zap.String("by", by))
	h.show(w, id)
}

func notFound(id types.NamespacedName) error {
	err := apierrors.NewNotFound(schema.GroupResource{Group: devices.Group, Resource: devices.DevicesResource}, id.String())
	err.ErrStatus.Message = fmt.Sprintf("no Device %s belongs to this gateway", id)
	return err
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

// writeError answers as Kubernetes does, with a Status.
func writeError(w http.ResponseWriter, err error) {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	writeJSON(w, int(status.Code), status)
}
