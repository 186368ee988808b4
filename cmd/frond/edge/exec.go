package edge

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	spdyupgrade "k8s.io/client-go/transport/spdy"
	"k8s.io/kubectl/pkg/cmd/exec"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// runningTimeout is kubectl's own: how long exec waits for a pod of a Deployment to run.
const runningTimeout = time.Minute

// newExec is kubectl's command with another transport: client-go's own executors do not support unix sockets.
func newExec(e *edgeAPI, f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
	o := &exec.ExecOptions{StreamOptions: exec.StreamOptions{IOStreams: streams}, Executor: socketExecutor{e}}
	cmd := &cobra.Command{
		Use:                   "exec POD [-c CONTAINER] [-i] [-t] -- COMMAND [ARGUMENT...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a command in a container of this gateway",
		Example:               "  frond edge exec -n shop web-5d9c7 -- date\n  frond edge exec -n shop web-5d9c7 -c main -it -- sh",
		Run: func(cmd *cobra.Command, args []string) {
			cmdutil.CheckErr(o.Complete(f, cmd, args, cmd.ArgsLenAtDash()))
			cmdutil.CheckErr(o.Validate())
			cmdutil.CheckErr(o.Run())
		},
	}
	cmdutil.AddPodRunningTimeoutFlag(cmd, runningTimeout)
	cmdutil.AddContainerVarFlags(cmd, &o.ContainerName, "")
	cmd.Flags().BoolVarP(&o.Stdin, "stdin", "i", false, "pass standard input to the container")
	cmd.Flags().BoolVarP(&o.TTY, "tty", "t", false, "standard input is a terminal")
	cmd.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "print only what the command prints")
	return cmd
}

// socketExecutor runs commands over the unix socket.
type socketExecutor struct{ edge *edgeAPI }

// Execute is ExecuteWithContext for callers without a context.
func (x socketExecutor) Execute(target *url.URL, cfg *rest.Config, in io.Reader, out, errs io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue) error {
	// kubectl calls this one; the process ends when the command is interrupted.
	return x.ExecuteWithContext(context.Background(), target, cfg, in, out, errs, tty, sizes)
}

// ExecuteWithContext runs the command and returns its exit code as an error, as kubectl expects.
func (x socketExecutor) ExecuteWithContext(ctx context.Context, target *url.URL, _ *rest.Config, in io.Reader, out, errs io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue) error {
	transport, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		UpgradeTransport: &http.Transport{DialContext: x.edge.dialSocket}, PingPeriod: 5 * time.Second, // as kubectl's own
	})
	if err != nil {
		return err
	}
	run, err := remotecommand.NewSPDYExecutorForTransports(transport, spdyupgrade.NewUpgraderForStreaming(transport), http.MethodPost, target)
	if err != nil {
		return err
	}
	return run.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs, Tty: tty, TerminalSizeQueue: sizes})
}
