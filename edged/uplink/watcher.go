package uplink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
)

const (
	// settleTime is how long the network must be quiet before it is read: an interface that comes up changes several times in a row.
	settleTime    = 300 * time.Millisecond
	maxSettleTime = 2 * time.Second
	// minRetry is the pause after the kernel dropped notices, as it does for a reader that is too slow. It doubles up to maxRetry where the
	// network cannot be watched at all.
	minRetry = time.Second
	maxRetry = 5 * time.Minute
)

// errEnded reports that the kernel's notices have ended.
var errEnded = errors.New("a subscription ended")

// Watcher calls for a dial when the machine's network has changed while there is no link to the hub.
type Watcher struct {
	// space is the network namespace, nil for that of the process.
	space  *netns.NsHandle
	isUp   func() bool
	redial func()
	log    *zap.Logger
	// ready closes when the network was read for the first time, or cannot be read.
	ready     chan struct{}
	readyOnce sync.Once
	// uplinks is what was read last; only Start uses it.
	uplinks string
}

// New returns a watcher. isUp reports whether there is a link to the hub, and redial dials it at once; neither blocks.
func New(isUp func() bool, redial func(), log *zap.Logger) *Watcher {
	return &Watcher{isUp: isUp, redial: redial, log: log, ready: make(chan struct{})}
}

// Ready closes when changes count: the network has been read.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Start watches until ctx ends and then returns nil. A machine that does not let it watch is logged: the gateway dials by its pauses then.
func (w *Watcher) Start(ctx context.Context) error {
	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		if ended := w.watchAndLog(ctx, pause); ended {
			pause = minRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// watchAndLog follows the network until that is not possible any more. It returns false if it never was, which is tried again after pause.
func (w *Watcher) watchAndLog(ctx context.Context, pause time.Duration) (ended bool) {
	err := w.watch(ctx)
	w.setReady()
	if ctx.Err() == nil {
		w.log.Warn("the network is not watched", zap.Duration("retry", pause), zap.Error(err))
	}
	return errors.Is(err, errEnded)
}

func (w *Watcher) setReady() { w.readyOnce.Do(func() { close(w.ready) }) }

// watch follows the network until a subscription ends.
func (w *Watcher) watch(ctx context.Context) error {
	handle, err := w.openHandle()
	if err != nil {
		return err
	}
	defer handle.Close()
	ctx, cancel := context.WithCancel(ctx)
	changes, err := w.subscribe(ctx)
	defer func() {
		cancel()
		for range changes { // until all readers have ended
		}
	}()
	if err != nil {
		return err
	}
	for open := true; open; open = awaitQuiet(ctx, changes) {
		now, err := describeUplinks(handle)
		if err != nil {
			return err
		}
		select {
		case <-w.ready:
			if shouldDial(w.uplinks, now, w.isUp()) {
				w.log.Info("the network has changed, dialling the hub", zap.String("uplinks", now))
				w.redial()
			}
		default: // at the start the gateway dials anyhow
		}
		w.uplinks = now
		w.setReady()
	}
	return errEnded
}

// shouldDial decides about a change of the uplinks.
func shouldDial(before, now string, linked bool) bool { return !linked && now != "" && now != before }

// awaitQuiet waits for a change and then until there is none for settleTime, but for maxSettleTime at most: interfaces of pods come and
// go all the time. It returns false when there will be no more changes.
func awaitQuiet(ctx context.Context, changes <-chan struct{}) bool {
	var quiet, latest <-chan time.Time // nil until the first change
	for {
		select {
		case <-ctx.Done():
			return false
		case _, open := <-changes:
			if !open {
				return false
			}
			quiet = time.After(settleTime)
			if latest == nil {
				latest = time.After(maxSettleTime)
			}
		case <-quiet:
			return true
		case <-latest:
			return true
		}
	}
}

func (w *Watcher) openHandle() (h *netlink.Handle, err error) {
	if w.space == nil {
		h, err = netlink.NewHandle()
	} else {
		h, err = netlink.NewHandleAt(*w.space)
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// subscribe returns a channel that receives something after each change, and is closed once all subscriptions have ended. They end with
// ctx, and with each other.
func (w *Watcher) subscribe(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan struct{}, 1) // one waiting notice covers all changes before it is received
	notify := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	unreadable := func(error) { notify() } // it may have been any change
	links, addresses, routes := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate)
	var readers sync.WaitGroup
	var errs []error
	follow := func(err error, read func()) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		readers.Go(func() {
			defer cancel()
			read()
		})
	}
	follow(netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{Namespace: w.space, ErrorCallback: unreadable}),
		func() { drain(links, notify) })
	follow(netlink.AddrSubscribeWithOptions(addresses, ctx.Done(), netlink.AddrSubscribeOptions{Namespace: w.space, ErrorCallback: unreadable}),
		func() { drain(addresses, notify) })
	follow(netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{Namespace: w.space, ErrorCallback: unreadable}),
		func() { drain(routes, notify) })
	if len(errs) > 0 {
		cancel()
	}
	go func() {
		readers.Wait()
		cancel()
		close(changes)
	}()
	return changes, errors.Join(errs...)
}

// drain notifies of each update until there are no more.
func drain[T any](updates <-chan T, notify func()) {
	for range updates {
		notify()
	}
}
