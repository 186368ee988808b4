package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/loadtest/swarm"
)

const (
	// swarmReport is how often a swarm says how it is.
	swarmReport = 10 * time.Second
	// gcPercent makes idle gateways take 260 KB each instead of 300, for a few hundredths more CPU (measured). GOGC overrides it.
	gcPercent = 40
)

type swarmRun struct {
	common
	gateways  int
	perSecond float64
	services  bool
}

func newSwarm() *cobra.Command {
	s := &swarmRun{}
	cmd := &cobra.Command{
		Use:   "swarm",
		Short: "Run simulated gateways until interrupted",
		Long: `Run simulated gateways until interrupted, then delete their Nodes and identities. Each joins with a token that the command makes,
and has a Node with the label and the taint loadtest.frond.io/run. Pods that tolerate the taint run there, as far as the cluster can tell.`,
		Example: "  frond loadtest swarm --gateways 500 --per-second 20",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	s.addFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&s.gateways, "gateways", 100, "how many gateways")               //nolint:mnd // a default
	f.Float64Var(&s.perSecond, "per-second", 10, "how many join each second") //nolint:mnd // a default
	f.BoolVar(&s.services, "services", false, "send them all Services and EndpointSlices, as to gateways with kube-proxy")
	return cmd
}

// Run runs the gateways until ctx ends.
func (s *swarmRun) Run(ctx context.Context, talk io.Writer) error {
	if s.gateways < 1 || s.perSecond <= 0 {
		return fmt.Errorf("--gateways %d, --per-second %v: write more than 0", s.gateways, s.perSecond)
	}
	c, err := s.connect(ctx, talk)
	if err != nil {
		return err
	}
	c.cfg.AllServices = s.services
	return c.withSwarm(ctx, talk, func(ctx context.Context, all *swarm.Swarm) error {
		group, gctx := errgroup.WithContext(ctx)
		group.Go(func() error { return all.Join(gctx, 0, s.gateways, s.perSecond, nil) })
		group.Go(func() error {
			ticker := time.NewTicker(swarmReport)
			defer ticker.Stop()
			for {
				select {
				case <-gctx.Done():
					return nil
				case <-ticker.C:
					faults, _ := all.Faults()
					counters := all.Counters()
					fmt.Fprintf(talk, "%d of %d have joined, %d linked, %d faults, %.1f MB sent, %.1f MB received; %s\n", all.Joined(), s.gateways,
						counters.Linked.Load(), faults, float64(counters.Sent.Load())/1e6, float64(counters.Received.Load())/1e6, memoryText()) //nolint:mnd // megabytes
				}
			}
		})
		if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
}

// withSwarm makes a namespace, a token and a swarm, calls work, and deletes all that has come of it. It returns work's error.
func (c *cluster) withSwarm(ctx context.Context, talk io.Writer, work func(context.Context, *swarm.Swarm) error) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	fmt.Fprintf(talk, "run %s\n", c.cfg.Run)
	var all *swarm.Swarm
	if err := c.CreateNamespace(ctx); err != nil {
		return err // nothing of this run exists; an earlier one of its name is not deleted
	}
	defer func() {
		left := c.clean(ctx, all, talk)
		if left != nil && ctx.Err() != nil {
			fmt.Fprintln(talk, left) // an interrupt is all that is said of the run otherwise
		}
		err = errors.Join(err, left)
	}()
	if c.cfg.Token, err = c.CreateToken(ctx, tokenTTL); err != nil {
		return err
	}
	if all, err = swarm.New(ctx, c.cfg, c.log); err != nil {
		return err
	}
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	group, gctx := errgroup.WithContext(sctx)
	group.Go(func() error { return all.Start(gctx) })
	group.Go(func() error {
		defer stop() // the gateways end before they are cleaned up
		return work(gctx, all)
	})
	return group.Wait()
}
