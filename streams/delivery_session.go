package streams

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// Identity returns what tells this process from others of the same node, and for how long it has been served: since its
// first attach, whatever came after it.
func (d *Delivery) Identity() (instance string, since time.Duration) {
	if first := d.firstAttach.Load(); first != nil {
		since = time.Since(*first)
	}
	return d.instance, since
}

// Resync makes the next attach, at once, one for everything: the store is compared object by object with what the cloud
// holds, and repaired. It does not block.
func (d *Delivery) Resync() {
	select {
	case d.resyncRequests <- struct{}{}:
	default:
	}
}

// ServerDied ends the present pull if its consumer lived in that server of the hub, so that the node attaches again at once. An
// attach that waits for an answer asks again, whoever died: a server, or a cloudcore. It does not block; where it is not heard,
// missing heartbeats and a missing answer say the same, some seconds later.
func (d *Delivery) ServerDied(server string) {
	select {
	case d.deadServers <- server:
	default:
	}
}

// runSession is one attach and the pulls after it. It ends with an error, or nil when the link changed.
// everything, when set, asks for a full attach, and is cleared by the first attach that succeeds.
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
			d.takeResyncRequest() // what was asked for meanwhile has been done
		}
		close(attached)
		return d.pullMessages(gctx, reply)
	})
	g.Go(func() error {
		resync, listed := d.resyncRequests, attached
		if full {
			resync = nil // it is under way; another wish would only make it begin again
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

// takeResyncRequest takes a waiting wish for everything.
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
