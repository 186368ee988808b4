package hollow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/frond-edge/frond/edged/hollow/behaviour"
)

// headerTimeout limits how long a stream client may take to send its request; it is the kubelet on the same machine.
const headerTimeout = 10 * time.Second

// runningContainer returns a running container, for exec.
func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.findContainer(id)
	if err != nil {
		return nil, err
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.Unknown, "container is in %s state", c.state)
	}
	return c, nil
}

// followCommand interprets a command as behaviour.Parse does. An unknown command succeeds at once without output.
func followCommand(ctx context.Context, command []string, out io.Writer) (int32, error) {
	plan := behaviour.ParseCommand(command)
	begin := time.Now()
	for _, line := range plan.Output {
		if err := sleepContext(ctx, time.Until(begin.Add(line.After))); err != nil {
			return 0, err
		}
		if _, err := fmt.Fprintln(out, line.Text); err != nil {
			return 0, err
		}
	}
	if err := sleepContext(ctx, time.Until(begin.Add(plan.EndAfter))); err != nil {
		return 0, err
	}
	return plan.Code, nil
}

// ExecSync interprets a command and returns its output.
func (s *runtimeService) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if _, err := s.runningContainer(req.GetContainerId()); err != nil {
		return nil, err
	}
	if req.GetTimeout() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.GetTimeout())*time.Second)
		defer cancel()
	}
	var out cappedBuffer
	code, err := followCommand(ctx, req.GetCmd(), &out)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %ds exceeded: context deadline exceeded", req.GetTimeout())
	}
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &runtimeapi.ExecSyncResponse{Stdout: out.bytes, ExitCode: code}, nil
}

// maxExecOutput is CRI's limit of 16 MiB for each stream of an ExecSync answer.
const maxExecOutput = 16 << 20

type cappedBuffer struct{ bytes []byte }

func (l *cappedBuffer) Write(p []byte) (int, error) {
	if room := maxExecOutput - len(l.bytes); room > 0 {
		l.bytes = append(l.bytes, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

// listenStreams opens the port for exec, attach and port-forward on loopback, as containerd does.
func (r *Runtime) listenStreams(ctx context.Context) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	r.streams, err = streaming.NewServer(config, streamBackend{r})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make stream server: %w", err), listener.Close())
	}
	return listener, nil
}

func (r *Runtime) serveStreams(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: r.streams, ReadHeaderTimeout: headerTimeout, IdleTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	g := errgroup.Group{}
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve streams: %w", err)
		}
		return nil
	})
	<-ctx.Done()
	return errors.Join(server.Close(), g.Wait())
}

// Exec returns a URL.
func (s *runtimeService) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := s.runningContainer(req.GetContainerId()); err != nil {
		return nil, err
	}
	return s.streams.GetExec(req)
}

// Attach returns a URL.
func (s *runtimeService) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := s.runningContainer(req.GetContainerId()); err != nil {
		return nil, err
	}
	return s.streams.GetAttach(req)
}

// PortForward returns a URL.
func (s *runtimeService) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s.mu.Lock()
	_, err := s.findSandbox(req.GetPodSandboxId())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.streams.GetPortForward(req)
}

// streamBackend is the container side of streams.
type streamBackend struct{ *Runtime }

func (s streamBackend) Exec(ctx context.Context, id string, cmd []string, _ io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if _, err := s.runningContainer(id); err != nil {
		return err
	}
	if out == nil {
		out = errOut
	}
	code, err := followCommand(ctx, cmd, out)
	if err == nil && code != 0 {
		err = &utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
	}
	return err
}

// Attach lasts until the container ends; it has no output.
func (s streamBackend) Attach(ctx context.Context, id string, _ io.Reader, _, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	c, err := s.runningContainer(id)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PortForward refuses, like a pod that serves no port.
func (s streamBackend) PortForward(_ context.Context, id string, port int32, _ io.ReadWriteCloser) error {
	return fmt.Errorf("dial port %d of sandbox %s: connection refused (hollow)", port, id)
}
