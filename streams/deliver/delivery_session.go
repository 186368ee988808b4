package deliver

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// Identity returns a name that distinguishes this process from others of the same node, and the time since its first successful attach;
// later faults do not reset that time.
func (d *Delivery) Identity() (instance string, since time.Duration) {
	if first := d.firstAttach.Load(); first != nil {
		since = time.Since(*first)
	}
	return d.instance, since
}

// Resync starts a full attach at once: the store is compared object by object with the state in the cloud, and repaired. It does not
// block.
func (d *Delivery) Resync() {
	select {
	case d.resyncRequests <- struct{}{}:
	default:
	}
}

// ServerDied ends the current pull if its consumer lived on that hub server, so that the node attaches again at once. An attach that waits
// for a reply sends its request again, whether a hub server or a cloudcore died. ServerDied does not block. If the message is lost,
// missing heartbeats and a missing reply have the same effect some seconds later.
func (d *Delivery) ServerDied(server string) {
	select {
	case d.deadServers <- server:
	default:
	}
}

// runSession runs one attach and the pulls after it. It ends with an error, or with nil when the link changed. everything, when set,
// requests a full attach; the first successful attach clears it.
func (d *Delivery) runSession(ctx context.Context, linkChanged <-chan struct{}, everything *bool) error {
	g, gctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	full, attached := *everything, make(chan struct{})
	g.Go(func() error {
		defer close(done)
		reply, err := d.attach(gctx, full)
		if err != nil {
			return err
		}
		now := time.Now()
		d.firstAttach.CompareAndSwap(nil, &now)
		if full {
			d.takeResyncRequest() // the attach has covered requests made meanwhile
		}
		close(attached)
		return d.pullMessages(gctx, reply)
	})
	g.Go(func() error {
		resync, listed := d.resyncRequests, attached
		if full {
			resync = nil // it is in progress; another request would only restart it
		}
		for {
			select {
			case <-linkChanged:
				return errLinkChanged
			case <-resync:
				return errResync
			case <-listed:
				listed, resync = nil, d.resyncRequests
			case <-done:
				return nil
			}
		}
	})
	err := g.Wait()
	select {
	case <-attached:
		*everything = errors.Is(err, errResync)
	default:
		*everything = full || errors.Is(err, errResync)
	}
	return err
}

// takeResyncRequest consumes a pending resync request.
func (d *Delivery) takeResyncRequest() bool {
	select {
	case <-d.resyncRequests:
		return true
	default:
		return false
	}
}

var (
	errServerDied  = errors.New("a server of the hub, or a cloudcore, is gone")
	errLinkChanged = errors.New("the link changed")
	errResync      = errors.New("the cloud requests a full resync")
)
