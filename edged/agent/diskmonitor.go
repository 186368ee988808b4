package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/outbox"
)

const (
	storageCheckInterval = time.Second
	// storageTimeout limits one write of the condition and one trimming.
	storageTimeout = 10 * time.Second
	// maxWaitingEvents is how many events wait for the link; at 1 to 2 KiB each they stay below the outbox's limit in
	// bytes, which drops without counting. maxWaitingEventsLow is the limit on a full disk.
	maxWaitingEvents, maxWaitingEventsLow = 4096, 64
)

// eventTrimmer drops the oldest waiting events.
type eventTrimmer interface {
	TrimEvents(ctx context.Context, keep uint64) (dropped uint64, err error)
}

// writableCheck returns a function with the reason why the store's disk cannot be written now.
func writableCheck(space func() leaf.DiskSpace) func() error {
	return func() error {
		if now := space(); now.Failed {
			return errors.New(now.String())
		}
		return nil
	}
}

// guardedOutbox refuses writes at once that a full disk would refuse after a timeout, so that the kubelet does not wait in vain.
type guardedOutbox struct {
	*outbox.Outbox
	checkWritable func() error
}

func (o guardedOutbox) Report(ctx context.Context, m wire.Message) error {
	if err := o.checkWritable(); err != nil {
		return err
	}
	return o.Outbox.Report(ctx, m)
}

func (o guardedOutbox) ReportEvent(ctx context.Context, m wire.Message) error {
	if err := o.checkWritable(); err != nil {
		return err
	}
	return o.Outbox.ReportEvent(ctx, m)
}

// diskMonitor reacts to a full disk: it drops events, the oldest first and counted, and sets a condition on the Node.
type diskMonitor struct {
	node    string
	space   func() leaf.DiskSpace
	events  eventTrimmer
	client  kubernetes.Interface
	dropped prometheus.Counter
	log     *zap.Logger
}

func newDiskMonitor(node string, space func() leaf.DiskSpace, events eventTrimmer, api *rest.Config, reg prometheus.Registerer, log *zap.Logger) (*diskMonitor, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	s := &diskMonitor{node: node, space: space, events: events, client: client, log: log, dropped: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Name: "events_dropped_total", Help: "Events that were dropped before the hub had them, the oldest first.",
	})}
	if err := reg.Register(s.dropped); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	return s, nil
}

// Start runs until ctx ends and then returns nil.
func (s *diskMonitor) Start(ctx context.Context) error {
	tick := time.NewTicker(storageCheckInterval)
	defer tick.Stop()
	said := ""
	for {
		space := s.space()
		s.trimEvents(ctx, space)
		if reason, status := spaceCondition(space); reason != said {
			// A full disk may refuse the write, and a new node is not registered yet: it is retried.
			if err := s.writeSpaceCondition(ctx, status, reason, space.String()); err != nil {
				s.log.Debug("condition not written", zap.String("reason", reason), zap.Error(err))
			} else {
				said = reason
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// checkReady is the check of /readyz.
func (s *diskMonitor) checkReady() error {
	space := s.space()
	if reason, status := spaceCondition(space); status != corev1.ConditionTrue {
		return fmt.Errorf("%s: %s", reason, space)
	}
	return nil
}

func spaceCondition(space leaf.DiskSpace) (reason string, status corev1.ConditionStatus) {
	switch {
	case space.Failed:
		return names.ReasonDiskFull, corev1.ConditionFalse
	case space.Low:
		return names.ReasonDiskAlmostFull, corev1.ConditionFalse
	default:
		return names.ReasonDiskHasSpace, corev1.ConditionTrue
	}
}

func (s *diskMonitor) trimEvents(ctx context.Context, space leaf.DiskSpace) {
	keep := uint64(maxWaitingEvents)
	if space.Low || space.Failed {
		keep = maxWaitingEventsLow
	}
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	n, err := s.events.TrimEvents(ctx, keep)
	if err != nil {
		s.log.Debug("events not trimmed", zap.Error(err))
		return
	}
	if n > 0 {
		s.dropped.Add(float64(n))
		s.log.Warn("events dropped, the oldest first", zap.Uint64("events", n), zap.Stringer("space", space))
	}
}

func (s *diskMonitor) writeSpaceCondition(ctx context.Context, status corev1.ConditionStatus, reason, message string) error {
	return writeCondition(ctx, s.client, s.node, names.ConditionStorage, status, reason, message)
}

// writeCondition writes a condition like any client of the local API: it reaches the store and, by a report, the cloud.
func writeCondition(ctx context.Context, client kubernetes.Interface, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().PatchStatus(ctx, node, patch)
	return err
}
