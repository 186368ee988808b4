package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

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
