package enrol

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/leaf"
)

// ConfigureLeaf makes a leaf one of this gateway's: it dials the gateway's hubs, once their CA is known, and shows them its key.
func (k *Renewer) ConfigureLeaf(c *leaf.Config) {
	c.Hub, c.Hubs, c.CAFile, c.Credential = k.cfg.Hub, k.Hubs, k.HubCA(), k.Credential
	c.Proxy, c.Time = k.cfg.Proxy, k.Now
}

// errEnrolled ends Join's parts.
var errEnrolled = errors.New("enrolled")

// redialMin and redialMax are shorter than a gateway's own: somebody waits.
const redialMin, redialMax = time.Second, 5 * time.Second

// Join enrols this machine by a leaf that is there for this alone, and returns what the cloud recorded, or why it did not. On a
// machine that is enrolled it does nothing. It asks until ctx ends, or the cloud refuses.
func Join(ctx context.Context, cfg Config, log *zap.Logger) (Record, error) {
	cfg.Once = true
	k, err := New(cfg, log)
	if err != nil {
		return Record{}, err
	}
	lobby := k.folder.path("lobby")
	if err := os.RemoveAll(lobby); err != nil { // of a try that was killed
		return Record{}, fmt.Errorf("clean up: %w", err)
	}
	if r := k.Record(); r.Key != "" {
		return r, nil
	}
	defer func() { _ = os.RemoveAll(lobby) }() // the next try does
	way := leaf.Config{Node: cfg.Node, Dir: lobby, Reserve: -1, RedialMin: redialMin, RedialMax: redialMax}
	k.ConfigureLeaf(&way)
	server, err := leaf.New(way, log)
	if err != nil {
		return Record{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Start(gctx) })
	g.Go(func() error {
		select {
		case <-server.Ready():
			return k.Start(gctx, server)
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		select {
		case <-k.Enrolled():
			return errEnrolled
		case <-gctx.Done():
			return nil
		}
	})
	switch err := g.Wait(); {
	case errors.Is(err, errEnrolled):
		return k.Record(), nil
	case err != nil:
		return Record{}, err
	default:
		return Record{}, fmt.Errorf("not enrolled: %w (%s)", context.Cause(ctx), k.lastWarning())
	}
}

// lastWarning is what was said last. Start has ended.
func (k *Renewer) lastWarning() string {
	if k.lastWarned == "" {
		return "nothing was heard"
	}
	return k.lastWarned
}
