package enroll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http/httpproxy"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/edged/enrollexec"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/leaf"
)

// errEnrolled ends Join's parts.
var errEnrolled = errors.New("enrolled")

// redialMin and redialMax are shorter than a gateway's own: an operator waits.
const redialMin, redialMax = time.Second, 5 * time.Second

// Join enrols this machine over a temporary leaf, and returns the cloud's record, or the reason for its refusal. On a
// machine that is enrolled it does nothing. It retries until ctx ends, or the cloud refuses.
func Join(ctx context.Context, cfg Config, log *zap.Logger) (identitydir.Record, error) {
	cfg.Once = true
	k, err := New(cfg, log)
	if err != nil {
		return identitydir.Record{}, err
	}
	lobby := k.keys.folder.Lobby()
	if err := os.RemoveAll(lobby); err != nil { // left by a killed attempt
		return identitydir.Record{}, fmt.Errorf("clean up: %w", err)
	}
	if r := k.Record(); r.Key != "" {
		return r, nil
	}
	defer func() { _ = os.RemoveAll(lobby) }() // the next attempt removes it otherwise
	way := leaf.Config{Node: cfg.Node, Dir: lobby, Reserve: -1, RedialMin: redialMin, RedialMax: redialMax}
	k.ConfigureLeaf(&way)
	server, err := leaf.New(way, log)
	if err != nil {
		return identitydir.Record{}, err
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
		return identitydir.Record{}, err
	default:
		return identitydir.Record{}, fmt.Errorf("not enrolled: %w (%s)", context.Cause(ctx), k.lastWarning())
	}
}

// JoinWith is Join for edgecore's subcommand: it takes the proxy of the environment and logs nothing, as the caller reports.
func JoinWith(ctx context.Context, o enrollexec.Options) (identitydir.Record, error) {
	return Join(ctx, Config{
		Node: o.Node, Dir: o.Dir, Hub: o.Hubs, Token: o.Token, TokenFile: o.TokenFile, CAHashes: o.CAHashes,
		Proxy: hubca.Proxy("", httpproxy.FromEnvironment()),
	}, zap.NewNop())
}
