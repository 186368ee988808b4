package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/devcluster"
)

type up struct {
	*cluster
	spec     devcluster.Spec
	runtime  string
	programs string
	timeout  time.Duration
}

func newUp(c *cluster) *cobra.Command {
	u := &up{cluster: c}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster, or the parts of it that do not run",
		Long: `Start a cluster, or the parts of it that do not run. Missing programs are built first. Give sizes again only
to grow a cluster; without them it stays as it is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return u.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	u.addFlags(cmd)
	return cmd
}

func (u *up) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&u.spec.Edges, "edges", 0, "number of gateways (new cluster: 2)")
	f.IntVar(&u.spec.Cloudcores, "cloudcores", 0, "number of cloudcores (new cluster: 2)")
	f.IntVar(&u.spec.Hubs, "hubs", 0, "number of hub servers, 1 or 3 (new cluster: 3)")
	f.IntVar(&u.spec.Partitions, "partitions", 0, "new cluster: number of streams of desired state, 1 to 4 (default 1)")
	f.BoolVar(&u.spec.KubeProxy, "kube-proxy", false, "run kube-proxy beside each edgecore, so that Services work on gateways (containerd; needs nft)")
	f.BoolVar(&u.spec.Services, "services", false, "new cluster: --kube-proxy, CoreDNS on each gateway, and routes between the pods of gateways")
	f.StringVar(&u.runtime, "runtime", "", "containerd or hollow (new cluster: containerd if root)")
	f.BoolVar(&u.spec.Devices, "devices", true, "run an MQTT broker on each gateway, which lets apps in without a user, and the socket for mappers; it stays once it is there")
	f.BoolVar(&u.spec.Direct, "direct", false, "new cluster: the apiserver knows no proxy and calls each gateway at a port of the cloudcores")
	f.StringVar(&u.spec.Kubernetes, "kubernetes", "", "new cluster: minor version of its control plane, 1.35 or 1.36 (default: that of the gateways' kubelet)")
	f.DurationVar(&u.timeout, "timeout", 0, "how long to wait until all is ready, beside building (default 3m)")
	f.StringVar(&u.programs, "programs", "", "JSON file that names the programs, instead of building them")
	_ = f.MarkHidden("programs") // fails only for an unknown flag
}

// Run starts the cluster and prints the next commands.
func (u *up) Run(ctx context.Context, out, talk io.Writer) error {
	dev, err := u.startCluster(ctx, talk)
	if err != nil {
		return err
	}
	printHints(out, dev)
	return nil
}

func (u *up) startCluster(ctx context.Context, talk io.Writer) (*devcluster.Cluster, error) {
	if os.Geteuid() != 0 && u.runtime == "" {
		_, _ = fmt.Fprintln(talk, "not root: gateways use the hollow runtime, which acts pods out but runs no container")
	}
	u.spec.Runtime = devcluster.Runtime(u.runtime)
	return devcluster.Up(ctx, devcluster.Options{
		Dir: u.dir, Spec: u.spec, Progress: talk, Timeout: u.timeout, Programs: findPrograms(u.programs, talk),
	})
}

func printHints(out io.Writer, dev *devcluster.Cluster) {
	_, _ = fmt.Fprintf(out, `
The cluster runs. To look around:
  . %[1]s
  kubectl get nodes -o wide
  nats stream ls                                         # the nats CLI; or, without the line above:
  XDG_CONFIG_HOME=%[2]s nats --context frond-dev stream ls
  frond dev status --dir %[2]s
To stop it:
  frond dev down --dir %[2]s
`, dev.Env(), dev.Dir())
}
