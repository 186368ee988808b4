package devcluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/process"
)

// Processes starts, pauses and kills the components of a cluster.
type Processes struct {
	f          *folder.Folder
	catalog    *catalog
	supervisor *process.Supervisor
}

// Components names all components.
func (r *Processes) Components() []string {
	var names []string
	for _, p := range r.catalog.all() {
		names = append(names, p.Name)
	}
	return names
}

// PID returns the process id of a component, 0 if it does not run.
func (r *Processes) PID(name string) int {
	if id := r.f.State.Processes[name]; id.Alive() {
		return id.PID
	}
	return 0
}

// Log opens the log of a component.
func (r *Processes) Log(name string) (*os.File, error) {
	if _, err := r.catalog.find(name); err != nil {
		return nil, err
	}
	f, err := os.Open(r.f.Layout.LogFile(name))
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// Ready returns an error unless a component is ready now.
func (r *Processes) Ready(ctx context.Context, name string) error {
	p, err := r.catalog.find(name)
	if err != nil {
		return err
	}
	if !r.f.State.Processes[p.Name].Alive() {
		return fmt.Errorf("%s: %w: it does not run", name, process.ErrNotReady)
	}
	if why := process.Problem(ctx, p); why != "" {
		return fmt.Errorf("%s: %w: %s", name, process.ErrNotReady, why)
	}
	return nil
}

// Launch starts a component that does not run and does not wait until it is ready. env is added to its environment, for this
// run only.
func (r *Processes) Launch(ctx context.Context, name string, env ...string) error {
	return r.startStopped(ctx, name, func(p process.Component) error {
		p.Command.Env = append(p.Command.Env, env...)
		return r.supervisor.Start(p)
	})
}

// startStopped calls start for a component that does not run, once its ports are free.
func (r *Processes) startStopped(ctx context.Context, name string, start func(process.Component) error) error {
	return r.f.Update(ctx, func() error {
		p, err := r.catalog.find(name)
		if err != nil {
			return err
		}
		if r.f.State.Processes[p.Name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		if err := r.supervisor.AwaitPorts(ctx, p); err != nil {
			return err
		}
		return start(p)
	})
}

// Kill ends a component as a crash would, with SIGKILL. Only Start and Up start it again.
func (r *Processes) Kill(ctx context.Context, name string) error {
	return r.f.Update(ctx, func() error {
		p, err := r.catalog.find(name)
		if err != nil {
			return err
		}
		id := r.f.State.Processes[p.Name]
		if !id.Alive() {
			return fmt.Errorf("%s does not run", name)
		}
		if err := id.Kill(ctx); err != nil {
			return err
		}
		r.f.Logf("%s (pid %d) is killed", name, id.PID)
		return nil
	})
}

// startTimeout bounds Start; the slowest component, the apiserver, takes 5 s on two busy cores.
const startTimeout = 90 * time.Second

// Start starts a component that does not run, and waits until it is ready.
func (r *Processes) Start(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("gave up after %s", startTimeout))
	defer cancel()
	return r.startStopped(ctx, name, func(p process.Component) error {
		if err := r.supervisor.StartStage(ctx, []process.Component{p}); err != nil || !strings.HasPrefix(name, "hub-") {
			return err
		}
		return r.awaitHubs(ctx)
	})
}

// awaitHubs waits until all running servers of the hub are ready: a server that returns makes the others unready for a moment.
func (r *Processes) awaitHubs(ctx context.Context) error {
	for _, p := range r.catalog.all() {
		if !strings.HasPrefix(p.Name, "hub-") || !r.f.State.Processes[p.Name].Alive() {
			continue
		}
		if err := r.supervisor.AwaitReady(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Pause stops a component with SIGSTOP: its connections stay open and get no answer. Resume continues it.
func (r *Processes) Pause(ctx context.Context, name string) error {
	return r.signalProcess(ctx, name, syscall.SIGSTOP)
}

// Resume undoes Pause. A component that is not paused is no error.
func (r *Processes) Resume(ctx context.Context, name string) error {
	return r.signalProcess(ctx, name, syscall.SIGCONT)
}

func (r *Processes) signalProcess(ctx context.Context, name string, sig syscall.Signal) error {
	return r.f.Update(ctx, func() error {
		p, err := r.catalog.find(name)
		if err != nil {
			return err
		}
		return r.f.State.Processes[p.Name].Signal(sig)
	})
}
