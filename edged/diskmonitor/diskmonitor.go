// Package diskmonitor reacts to a full disk of a gateway: it drops waiting events, refuses reports that could not be stored, and shows
// the fault in the condition EdgeStorage of the Node. It does not measure the disk; package leaf does.
package diskmonitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
)

const (
	checkInterval = time.Second
	trimTimeout   = 10 * time.Second
	// maxWaitingEvents is how many events wait for the link; at 1 to 2 KiB each they stay below the outbox's limit in
	// bytes, which drops without counting. maxWaitingEventsLow is the limit on a full disk.
	maxWaitingEvents, maxWaitingEventsLow = 4096, 64
	// minTrimSpace is the free space without which nothing is trimmed. Dropping events writes a tombstone of some bytes, and nats-server 2.15
	// locks up for ever when that write fails: it rebuilds the stream's state under a lock that it holds already.
	minTrimSpace = 1 << 20
)

// Disk is the store's disk; leaf.Server implements it.
type Disk interface {
	// DiskSpace returns the last measurement, at most a second old.
	DiskSpace() leaf.DiskSpace
	// FreeSpace measures the free bytes now.
	FreeSpace() (int64, error)
}

// EventTrimmer drops the oldest waiting events.
type EventTrimmer interface {
	TrimEvents(ctx context.Context, keep uint64) (dropped uint64, err error)
}

// ConditionWriter writes a condition of the Node.
type ConditionWriter interface {
	Write(ctx context.Context, c corev1.NodeCondition) error
}

// Reporter takes the reports and events of this node, as localapi.Reporter.
type Reporter interface {
	Report(ctx context.Context, m wire.Message) error
	ReportEvent(ctx context.Context, m wire.Message) error
}

// WritableCheck returns a function with the reason why the store's disk cannot be written now.
func WritableCheck(space func() leaf.DiskSpace) func() error {
	return func() error {
		if now := space(); now.Failed {
			return errors.New(now.String())
		}
		return nil
	}
}

// GuardedReporter refuses writes at once that a full disk would refuse after a timeout, so that the kubelet does not wait in vain.
type GuardedReporter struct {
	Reporter      Reporter
	CheckWritable func() error
}

// Report passes a report on, or returns why the disk cannot be written.
func (o GuardedReporter) Report(ctx context.Context, m wire.Message) error {
	if err := o.CheckWritable(); err != nil {
		return err
	}
	return o.Reporter.Report(ctx, m)
}

// ReportEvent is Report for an event.
func (o GuardedReporter) ReportEvent(ctx context.Context, m wire.Message) error {
	if err := o.CheckWritable(); err != nil {
		return err
	}
	return o.Reporter.ReportEvent(ctx, m)
}

// Monitor watches the disk. It drops events, the oldest first and counted, and keeps the condition up to date.
type Monitor struct {
	disk       Disk
	events     EventTrimmer
	conditions ConditionWriter
	dropped    prometheus.Counter
	log        *zap.Logger
}

// New returns the monitor of a disk.
func New(disk Disk, events EventTrimmer, conditions ConditionWriter, reg prometheus.Registerer, log *zap.Logger) (*Monitor, error) {
	s := &Monitor{disk: disk, events: events, conditions: conditions, log: log, dropped: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Name: "events_dropped_total", Help: "Events that were dropped before the hub had them, the oldest first.",
	})}
	if err := reg.Register(s.dropped); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	return s, nil
}

// Start runs until ctx ends and then returns nil.
func (s *Monitor) Start(ctx context.Context) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	written := "" // the reason in the last written condition
	for {
		space := s.disk.DiskSpace()
		s.trimEvents(ctx, space)
		if reason, status := spaceCondition(space); reason != written {
			// A full disk may refuse the write, and a new node is not registered yet: it is retried.
			if err := s.conditions.Write(ctx, corev1.NodeCondition{Type: names.ConditionStorage, Status: status, Reason: reason, Message: space.String()}); err != nil {
				s.log.Debug("condition not written", zap.String("reason", reason), zap.Error(err))
			} else {
				written = reason
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// CheckReady is the check of /readyz.
func (s *Monitor) CheckReady() error {
	space := s.disk.DiskSpace()
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

func (s *Monitor) trimEvents(ctx context.Context, space leaf.DiskSpace) {
	keep := uint64(maxWaitingEvents)
	if space.Low || space.Failed {
		keep = maxWaitingEventsLow
	}
	if free, err := s.disk.FreeSpace(); err != nil || free < minTrimSpace {
		s.log.Debug("events not trimmed: no space to write which ones were", zap.Int64("free", free), zap.Error(err))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
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
