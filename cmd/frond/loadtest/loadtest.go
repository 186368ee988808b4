// Package loadtest holds frond loadtest: what a hub and its cloudcores carry, measured with simulated gateways.
package loadtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/loadtest/cleanup"
	"github.com/frond-edge/frond/loadtest/swarm"
)

const (
	// cleanTimeout bounds the cleanup, also of ten thousand gateways.
	cleanTimeout = 15 * time.Minute
	// tokenTTL is how long gateways may join a run.
	tokenTTL = 24 * time.Hour
)

// NewCommand returns frond loadtest.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "loadtest", Short: "Measure what a hub and its cloudcores carry, with simulated gateways"}
	cmd.AddCommand(newRun(), newSwarm(), newClean())
	return cmd
}

// common are the flags and the clients of the commands that have gateways.
type common struct {
	kubeflags.Flags
	run     string
	hubs    []string
	verbose bool
}

func (c *common) addFlags(cmd *cobra.Command) {
	c.AddFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.run, "run", "", "the run's id, in the names of its objects; random by default")
	f.StringSliceVar(&c.hubs, "hub", nil, "the hub's leaf listeners, tls://HOST:PORT; by default those that frond init was given")
	f.BoolVar(&c.verbose, "verbose", false, "log what the gateways do")
}

// cluster is a run with its clients.
type cluster struct {
	*cleanup.Run
	kube kubernetes.Interface
	log  *zap.Logger
	cfg  swarm.Config
}

// connect makes the clients, and the configuration of a swarm without its token.
func (c *common) connect(ctx context.Context, talk io.Writer) (*cluster, error) {
	if c.run == "" {
		const letters = 8
		c.run = strings.ToLower(rand.Text()[:letters])
	}
	rest, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	run, err := cleanup.New(c.run, kube, rest)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	settings, err := install.ReadSettings(ctx, kube)
	if err != nil {
		return nil, err
	}
	if len(c.hubs) == 0 {
		c.hubs = settings.HubURLs
	}
	if len(c.hubs) == 0 {
		return nil, errors.New("the hub's address is not known: give --hub tls://HOST:PORT")
	}
	version, err := kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return &cluster{
		Run: run, kube: kube, log: newLogger(talk, c.verbose),
		cfg: swarm.Config{
			Run: c.run, NodeName: run.NodeName, Hubs: c.hubs, CAHashes: []string{settings.CAHash},
			Version: buildinfo.Version(), KubeletVersion: version.GitVersion,
		},
	}, nil
}

// newLogger logs to the user: what a run does, and of the gateways only what is wrong, unless verbose.
func newLogger(talk io.Writer, verbose bool) *zap.Logger {
	level := zap.WarnLevel
	if verbose {
		level = zap.InfoLevel
	}
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.Lock(zapcore.AddSync(talk)), level))
}

// clean deletes what the run has made, also after an interrupt.
func (c *cluster) clean(ctx context.Context, s *swarm.Swarm, talk io.Writer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	own := map[string]string{}
	if s != nil {
		for _, g := range s.Gateways() {
			own[g.Name()] = g.Key()
		}
	}
	fmt.Fprintf(talk, "deleting the objects of the run\n")
	if err := c.Delete(ctx, own); err != nil {
		return fmt.Errorf("clean up: %w\n  frond loadtest clean --run %s tries again", err, c.cfg.Run)
	}
	return nil
}

func newClean() *cobra.Command {
	c := &common{}
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Delete what a run has left in the cluster",
		Long: `Delete what a run of frond loadtest has left in the cluster: its namespace, its token, and the Nodes with the label of the run,
with their identities. A run does that itself, unless it was killed. Nothing of another run is deleted.`,
		Example: "  frond loadtest clean --run 4kq2m7xa",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.run == "" {
				return errors.New("--run is missing; kubectl get nodes -L loadtest.frond.io/run lists the runs")
			}
			cluster, err := c.connect(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return cluster.clean(cmd.Context(), nil, cmd.ErrOrStderr())
		},
	}
	c.addFlags(cmd)
	return cmd
}
