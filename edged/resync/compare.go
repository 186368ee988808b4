package resync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// compareTries is how often the cloud is asked before all pods are reported instead. After an outage of the hub a link may be up
	// some seconds before the cloudcores' own.
	compareTries = 5
	// comparePause is the pause between them; up to as much is added at random.
	comparePause = 5 * time.Second
)

// CompareFunc asks the cloud which pods need no report. Its error wraps wire.ErrOffline if no cloudcore answered.
type CompareFunc func(ctx context.Context, request wire.SameRequest) (wire.SameReply, error)

// errLinkChanged says that the link changed before a cloudcore answered. Everything begins again when it is up.
var errLinkChanged = errors.New("the link has changed")

// changedPods leaves out the pods whose status Kubernetes holds already. What cannot be compared is kept. Its only error is errLinkChanged.
func (r *Reporter) changedPods(ctx context.Context, pods []store.Entry, linkChanged <-chan struct{}) ([]store.Entry, error) {
	var compared, changed []store.Entry
	var digests []wire.PodDigest
	for _, pod := range pods {
		digest, err := digestPod(pod)
		if err != nil || pod.UID == "" {
			changed = append(changed, pod) // reporting it shows what is wrong; a static pod has no UID before its mirror
			continue
		}
		compared, digests = append(compared, pod), append(digests, digest)
	}
	for start := 0; start < len(digests); start += wire.MaxPodDigests {
		end := min(start+wire.MaxPodDigests, len(digests))
		reply, err := r.askCloud(ctx, wire.SameRequest{Pods: digests[start:end]}, linkChanged)
		if errors.Is(err, errLinkChanged) {
			return nil, err
		}
		if err != nil {
			r.log.Info("pods not compared with the cloud's, all are reported", zap.Error(err))
			return append(changed, compared[start:]...), nil
		}
		for i, pod := range compared[start:end] {
			if !slices.Contains(reply.Same, i) {
				changed = append(changed, pod)
			}
		}
	}
	return changed, nil
}

// askCloud asks until a cloudcore answers, the link changes or the tries are used up.
func (r *Reporter) askCloud(ctx context.Context, request wire.SameRequest, linkChanged <-chan struct{}) (wire.SameReply, error) {
	for try := 1; ; try++ {
		reply, err := r.compare(ctx, request)
		if !errors.Is(err, wire.ErrOffline) || try == compareTries {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return reply, err
		case <-linkChanged:
			return reply, errLinkChanged
		case <-time.After(r.comparePause + rand.N(r.comparePause)): //nolint:gosec // not a secret
		}
	}
}

func digestPod(entry store.Entry) (wire.PodDigest, error) {
	var pod struct {
		Status corev1.PodStatus `json:"status"`
	}
	if err := json.Unmarshal(entry.Object, &pod); err != nil {
		return wire.PodDigest{}, fmt.Errorf("decode: %w", err)
	}
	digest, err := podstatus.Digest(pod.Status)
	return wire.PodDigest{Namespace: entry.Key.Namespace, Name: entry.Key.Name, UID: entry.UID, Digest: digest}, err
}
