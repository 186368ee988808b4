package kinds

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func podColumns() []metav1.TableColumnDefinition {
	return columnDefinitions("Name", "Ready", "Status", "Restarts", "Age", "|", "IP", "Node", "Nominated Node", "Readiness Gates")
}

func podRowConditions(obj runtime.Object) []metav1.TableRowCondition {
	phase := obj.(*corev1.Pod).Status.Phase
	if phase != corev1.PodSucceeded && phase != corev1.PodFailed {
		return nil
	}
	message := "The pod has completed successfully."
	if phase == corev1.PodFailed {
		message = "The pod failed."
	}
	return []metav1.TableRowCondition{{
		Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(phase), Message: message,
	}}
}

// podCells returns the cells of `kubectl get pods`: an operator must read the same on the gateway as in the cloud.
func podCells(obj runtime.Object) []any {
	pod := obj.(*corev1.Pod)
	s := summarisePod(pod)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, formatAge(s.lastRestart))
	}
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return []any{
		pod.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, formatAge(pod.CreationTimestamp),
		orNone(ip), orNone(pod.Spec.NodeName), orNone(pod.Status.NominatedNodeName), formatReadinessGates(pod),
	}
}

func formatReadinessGates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return noneCell
	}
	met := 0
	for _, gate := range pod.Spec.ReadinessGates {
		if conditionTrue(pod, gate.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(pod.Spec.ReadinessGates))
}

func conditionTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podSummary summarizes a pod's containers for the table.
type podSummary struct {
	ready, total, restarts int
	lastRestart            metav1.Time
	reason                 string
}

func (s *podSummary) addRestarts(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

func summarisePod(pod *corev1.Pod) podSummary {
	s := podSummary{total: len(pod.Spec.Containers), reason: string(pod.Status.Phase)}
	if pod.Status.Reason != "" {
		s.reason = pod.Status.Reason
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = c.Reason
		}
	}
	sidecars := podSummary{} // restartable init containers still count after the pod is initialised
	initialising := s.addInitContainers(pod, &sidecars)
	if !initialising || conditionTrue(pod, corev1.PodInitialized) {
		s.restarts, s.lastRestart = sidecars.restarts, sidecars.lastRestart
		s.addContainers(pod)
	}
	switch {
	case pod.DeletionTimestamp == nil:
	case pod.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed:
		s.reason = "Terminating"
	}
	return s
}

// addInitContainers reports whether an init container still delays the pod.
func (s *podSummary) addInitContainers(pod *corev1.Pod, sidecars *podSummary) bool {
	restartable := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			restartable[c.Name] = true
			s.total++
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		c := &pod.Status.InitContainerStatuses[i]
		s.addRestarts(c)
		if restartable[c.Name] {
			sidecars.addRestarts(c)
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case restartable[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

func (s *podSummary) addContainers(pod *corev1.Pod) {
	running, failure := false, ""
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &pod.Status.ContainerStatuses[i]
		s.addRestarts(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = endReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	switch { // one container has completed; the others decide
	case running && conditionTrue(pod, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}
