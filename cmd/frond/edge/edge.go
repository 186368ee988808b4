// Package edge holds frond edge: kubectl's commands on the local API of the gateway on which they run.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/get"
	kubectllogs "k8s.io/kubectl/pkg/cmd/logs"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/frond-edge/frond/internal/cli"
)

const (
	envSocket = "FROND_SOCKET"
	// defaultSocket is the local API's socket in the documented folder of edgecore.
	defaultSocket = "/var/lib/frond/api.sock"
	// localHost stands for the gateway in URLs and in messages; it is never resolved.
	localHost = "http://gateway"
	// socketTimeout bounds the first dial: a socket answers at once or not at all.
	socketTimeout = 5 * time.Second
)

// edgeAPI is a kubectl client factory for the local API of the gateway on which the command runs.
type edgeAPI struct {
	socket, namespace string
	discoveryClient   discovery.CachedDiscoveryInterface
}

// NewCommand returns frond edge.
func NewCommand() *cobra.Command {
	e := &edgeAPI{}
	cmd := &cobra.Command{
		Use:   "edge",
		Short: "Inspect and operate the gateway that this runs on, without the cloud",
		Long: `Inspect and operate the gateway that this runs on, without the cloud. edgecore answers on its unix socket, also while the link
is down: objects on the gateway, logs of pods, commands in containers, restarts of containers. The flags are kubectl's.

Access to the socket gives full control of the gateway and its Secrets. Without localAPI.socketGroup in edgecore's
configuration only root has it. $` + envSocket + ` names another socket than ` + defaultSocket + `.`,
		Example: `  frond edge get pods -A -o wide
  frond edge describe pod -n shop web-5d9c7
  frond edge logs -n shop web-5d9c7 --tail=20 -f
  frond edge exec -n shop web-5d9c7 -it -- sh
  frond edge restart -n shop web-5d9c7 -c main
  frond edge device set boiler setpoint=60 --for 1h`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return e.checkSocket(cmd.Context()) },
	}
	cmd.PersistentFlags().StringVar(&e.socket, "socket", cmp.Or(os.Getenv(envSocket), defaultSocket), "edgecore's unix socket")
	cmd.PersistentFlags().StringVarP(&e.namespace, "namespace", "n", "default", "namespace of what is asked for")
	f := cmdutil.NewFactory(e)
	// kubectl's commands exit the process with their message; here they end the command with it.
	cmdutil.BehaviorOnFatal(func(message string, code int) { panic(&cli.ExitError{Message: message, Code: code}) })
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: &lazyWriter{cmd.OutOrStdout}, ErrOut: &lazyWriter{cmd.ErrOrStderr}}
	cmd.AddCommand(
		wrapKubectl(get.NewCmdGet("frond edge", f, streams)),
		wrapKubectl(describe.NewCmdDescribe("frond edge", f, streams)),
		wrapKubectl(kubectllogs.NewCmdLogs(f, streams)),
		wrapKubectl(newExec(e, f, streams)),
		newRestart(e, f),
		newDevice(e, f),
	)
	return cmd
}

// lazyWriter writes to a stream that is known only when the command runs.
type lazyWriter struct{ writer func() io.Writer }

func (l *lazyWriter) Write(p []byte) (int, error) { return l.writer().Write(p) }

// wrapKubectl adapts a command of kubectl to this program: it returns its errors, and ends with the context.
func wrapKubectl(cmd *cobra.Command) *cobra.Command {
	run := cmd.Run
	cmd.Run = nil
	cmd.Example = strings.ReplaceAll(cmd.Example, "kubectl ", "frond edge ")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		done := make(chan error, 1) // buffered for an end that comes after an interrupt
		go func() {
			defer func() {
				switch p := recover().(type) {
				case nil:
					done <- nil
				case *cli.ExitError:
					done <- p
				default:
					panic(p)
				}
			}()
			run(cmd, args)
		}()
		select {
		case err := <-done:
			return err
		case <-cmd.Context().Done(): // kubectl's commands take no context; the process ends now
			return cmd.Context().Err()
		}
	}
	return cmd
}

// checkSocket returns a readable error if the socket cannot be used, before kubectl's own errors hide the reason.
func (e *edgeAPI) checkSocket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
	defer cancel()
	conn, err := e.dialSocket(ctx, "", "")
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("you may not open %s: become root, or a member of the group that edgecore's localAPI.socketGroup names", e.socket)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no socket %s: edgecore does not run here, or its localAPI.socket is another one (--socket, $%s)", e.socket, envSocket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no answer at %s: edgecore does not run (systemctl status edgecore)", e.socket)
	default:
		return fmt.Errorf("open %s: %w", e.socket, err)
	}
}

func (e *edgeAPI) dialSocket(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", e.socket)
}

// ToRESTConfig returns the client configuration of the API. The socket's file mode is the only authentication.
func (e *edgeAPI) ToRESTConfig() (*rest.Config, error) {
	cfg := &rest.Config{Host: localHost, Dial: e.dialSocket, QPS: -1, APIPath: "/api"} // as kubectl's own: of the core group
	cfg.GroupVersion, cfg.NegotiatedSerializer = &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	return cfg, rest.SetKubernetesDefaults(cfg)
}

// ToDiscoveryClient reads the served kinds once.
func (e *edgeAPI) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	if e.discoveryClient != nil {
		return e.discoveryClient, nil
	}
	cfg, err := e.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	e.discoveryClient = memory.NewMemCacheClient(client)
	return e.discoveryClient, nil
}

// ToRESTMapper finds resources by their names and short names.
func (e *edgeAPI) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := e.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(client), client, nil), nil
}

// ToRawKubeConfigLoader returns a kubeconfig of the gateway alone; the user's own is not read.
func (e *edgeAPI) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	const name = "gateway"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: localHost}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, Namespace: e.namespace}
	cfg.CurrentContext = name
	return clientcmd.NewDefaultClientConfig(*cfg, &clientcmd.ConfigOverrides{})
}
