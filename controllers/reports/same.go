package reports

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/api/wire"
)

// ComparePods answers a node which of its pods it need not report: those whose reports would be dropped as unchanged. It reads the same
// cache as the handling of a report does. A pod that is not the node's counts as different, whatever its digest, as does one that is gone.
func ComparePods(ctx context.Context, cached client.Reader, node string, request wire.SameRequest) (wire.SameReply, error) {
	if len(request.Pods) > wire.MaxPodDigests {
		return wire.SameReply{}, fmt.Errorf("%w: %d pods to compare, at most %d", wire.ErrPermanent, len(request.Pods), wire.MaxPodDigests)
	}
	var reply wire.SameReply
	for i, asked := range request.Pods {
		if asked.Namespace == "" || asked.Name == "" || asked.UID == "" || asked.Digest == "" {
			return wire.SameReply{}, fmt.Errorf("%w: pod %d to compare lacks its namespace, name, UID or digest", wire.ErrPermanent, i)
		}
		pod := &corev1.Pod{}
		err := cached.Get(ctx, client.ObjectKey{Namespace: asked.Namespace, Name: asked.Name}, pod)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return wire.SameReply{}, fmt.Errorf("read: %w", err)
		}
		if pod.Spec.NodeName != node || string(pod.UID) != asked.UID {
			continue
		}
		digest, err := podstatus.Digest(pod.Status)
		if err != nil {
			return wire.SameReply{}, err
		}
		if digest == asked.Digest {
			reply.Same = append(reply.Same, i)
		}
	}
	return reply, nil
}
