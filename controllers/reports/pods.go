package reports

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// podReports applies the reports of pods: their status and their end.
type podReports struct{ *target }

func (a podReports) applyPodStatus(ctx context.Context, m wire.Message) error {
	reported := &corev1.Pod{}
	if err := decodeObject(m, reported); err != nil {
		return err
	}
	return retryStale(func(live bool) error {
		pod, reason, err := a.readPod(ctx, m, live)
		if err != nil {
			return err
		}
		if reason == dropGone && m.UID == "" && reported.Annotations[corev1.MirrorPodAnnotationKey] != "" {
			return a.createMirror(ctx, m, reported)
		}
		if reason != "" {
			return a.dropReport(m, reason)
		}
		patch, err := podStatusPatch(pod, reported.Status)
		if err != nil {
			return err
		}
		if patch == nil {
			return a.dropReport(m, dropUnchanged)
		}
		if last, err := a.isLatest(ctx, m); err != nil {
			return err
		} else if !last {
			return a.dropReport(m, dropReplaced)
		}
		_, err = a.node.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) {
			return errPodNotFound
		}
		if err != nil {
			return err
		}
		return a.finishStatus(ctx, m)
	})
}

// errPodNotFound is a write's "not found". It proves nothing: NodeRestriction answers so from a cache of its own, which
// an apiserver that has just started fills while it already serves. The next try reads the pod live.
var errPodNotFound = fmt.Errorf("a write did not find the pod: %w", errStale)

// readPod returns the pod of a report, or why there is none for this node. If the cache contradicts a report, the pod
// is read again live: it may be newer than the cache.
func (a podReports) readPod(ctx context.Context, m wire.Message, live bool) (pod *corev1.Pod, reason string, err error) {
	if live {
		pod, err = a.own.CoreV1().Pods(m.Key.Namespace).Get(ctx, m.Key.Name, metav1.GetOptions{})
	} else {
		pod = &corev1.Pod{}
		err = a.cached.Get(ctx, client.ObjectKey{Namespace: m.Key.Namespace, Name: m.Key.Name}, pod)
	}
	switch {
	case apierrors.IsNotFound(err):
		reason = dropGone
	case err != nil:
		return nil, "", fmt.Errorf("read: %w", err)
	case pod.Spec.NodeName != m.Node:
		reason = dropForeign
	case string(pod.UID) != m.UID:
		reason = dropOtherUID
	}
	if reason != "" && !live {
		return nil, "", errStale
	}
	return pod, reason, nil
}

// createMirror creates the mirror pod of a static pod. NodeRestriction lets a node create no other pod.
func (a podReports) createMirror(ctx context.Context, m wire.Message, reported *corev1.Pod) error {
	if a.protected.Covers(m.Key) {
		a.log.Warn("mirror pod not created: its namespace is protected", zap.String("node", m.Node), zap.String("pod", m.Key.Namespace+"/"+m.Key.Name))
		return a.dropReport(m, dropProtected)
	}
	if last, err := a.isLatest(ctx, m); err != nil {
		return err
	} else if !last {
		return a.dropReport(m, dropReplaced)
	}
	pod := reported.DeepCopy()
	pod.UID, pod.ResourceVersion, pod.Generation, pod.ManagedFields = "", "", 0, nil
	pod.CreationTimestamp = metav1.Time{}
	if _, err := a.node.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	return a.recordApplied(m, "create")
}

// applyPodEnd removes a pod whose containers are gone. If the message carries the pod's last state, that is applied
// first, so that exit codes are not lost when the end overtakes the last status in the node's outbox.
func (a podReports) applyPodEnd(ctx context.Context, m wire.Message) error {
	if m.UID == "" {
		return fmt.Errorf("%w: end of a pod without its UID", wire.ErrPermanent)
	}
	if len(m.Object) > 0 {
		if err := a.applyPodStatus(ctx, m); err != nil {
			return err
		}
	}
	return retryStale(func(live bool) error {
		pod, reason, err := a.readPod(ctx, m, live)
		if err != nil {
			return err
		}
		if reason != "" {
			return a.dropReport(m, reason)
		}
		_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
		if pod.DeletionTimestamp == nil && !mirror {
			if !live {
				return errStale
			}
			// A kubelet ends only pods that were deleted in the API. Anything else is a fault, and the pod is kept.
			return a.dropReport(m, dropRunning)
		}
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = metav1.NewUIDPreconditions(m.UID)
		err = a.node.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
		if apierrors.IsNotFound(err) {
			return errPodNotFound
		}
		if err != nil {
			return err
		}
		return a.recordApplied(m, "delete")
	})
}
