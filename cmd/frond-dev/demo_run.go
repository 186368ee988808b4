package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

//go:embed demo.yaml
var demoManifests string

// cutEdge is the gateway that loses its link, linkedEdge the one that keeps it.
const cutEdge, linkedEdge = "edge-1", "edge-2"

// demoRun is one run of the demo. Its steps run in order and record values that later ones compare with.
type demoRun struct {
	dev        *devcluster.Cluster
	out        io.Writer
	began      time.Time
	offlineFor time.Duration
	stepNumber int

	podsBefore map[string]corev1.Pod // the pods of cutEdge before the cut, by name
	version    string                // resourceVersion of the last ConfigMap
	healedAt   time.Time
}

// lastVersion is the number of changes of the page while the link is cut.
const lastVersion = 6

func isRunning(p corev1.Pod) bool {
	all := p.Status.ContainerStatuses
	return p.Status.Phase == corev1.PodRunning && len(all) > 0 && !slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool { return !c.Ready })
}

func (s *demoRun) printStep(format string, args ...any) {
	s.stepNumber++
	_, _ = fmt.Fprintf(s.out, "\n%6.1fs  %d. %s\n", time.Since(s.began).Seconds(), s.stepNumber, fmt.Sprintf(format, args...))
}

func (s *demoRun) printFact(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, "%6.1fs     ok: %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// showKubectl runs kubectl and prints command and output, indented.
func (s *demoRun) showKubectl(ctx context.Context, args ...string) error {
	out, err := s.dev.Kubectl(ctx, "", args...)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(s.out, "           $ kubectl %s\n", strings.Join(args, " "))
	for line := range strings.Lines(out) {
		_, _ = fmt.Fprint(s.out, "           ", line)
	}
	return nil
}

// retryUntil calls check every 200 ms until it returns nil, or returns its last error when limit is over.
func retryUntil(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if last == nil || ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w (waited %s)", last, limit)
	}
	return nil
}

// runsContainers reports whether the pods have real containers.
func (s *demoRun) runsContainers() bool { return s.dev.Spec().Runtime == devcluster.Containerd }

// listPods lists the pods of the demo on a gateway, by name.
func (s *demoRun) listPods(ctx context.Context, edge string) (map[string]corev1.Pod, error) {
	out, err := s.dev.Kubectl(ctx, "", "get", "pods", "-n", "demo", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("understand pods: %w", err)
	}
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if p.Spec.NodeName == edge {
			pods[p.Name] = p
		}
	}
	return pods, nil
}

// wantRunning fails unless each of the two gateways runs n pods of the demo.
func (s *demoRun) wantRunning(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, edge := range []string{cutEdge, linkedEdge} {
			pods, err := s.listPods(ctx, edge)
			if err != nil {
				return err
			}
			running := 0
			for _, p := range pods {
				if isRunning(p) {
					running++
				}
			}
			if running != n || len(pods) != n {
				return fmt.Errorf("%s runs %d of %d pods, want %d", edge, running, len(pods), n)
			}
		}
		return nil
	}
}

// wantPage fails unless each running pod of a gateway serves this text to a client inside the gateway.
func (s *demoRun) wantPage(ctx context.Context, edge, path, want string) error {
	pods, err := s.listPods(ctx, edge)
	if err != nil {
		return err
	}
	for name, p := range pods {
		got, err := s.dev.FromEdge(ctx, edge, "http://"+p.Status.PodIP+":8080/"+path)
		if err != nil {
			return fmt.Errorf("ask pod %s: %w", name, err)
		}
		if strings.TrimSpace(got) != want {
			return fmt.Errorf("pod %s on %s serves %q, want %q", name, edge, got, want)
		}
	}
	return nil
}

// listHeld returns the objects of the demo's namespace that a gateway holds, by their display name.
func (s *demoRun) listHeld(ctx context.Context, edge string) (map[string]devcluster.StoredObject, error) {
	stored, err := s.dev.Store(ctx, edge)
	if err != nil {
		return nil, err
	}
	objects := map[string]devcluster.StoredObject{}
	for _, o := range stored.Objects {
		if o.Namespace == "demo" {
			objects[o.Key().Human()] = o
		}
	}
	return objects, nil
}

// readPage returns the text of the ConfigMap as a gateway holds it.
func (s *demoRun) readPage(ctx context.Context, edge string) (text, version string, err error) {
	object, err := s.dev.StoreGet(ctx, edge, wire.Key{Resource: "configmaps", Namespace: "demo", Name: "page"})
	if err != nil {
		return "", "", err
	}
	objects, err := s.listHeld(ctx, edge)
	if err != nil {
		return "", "", err
	}
	var cm corev1.ConfigMap
	if err := json.Unmarshal(object, &cm); err != nil {
		return "", "", fmt.Errorf("understand ConfigMap: %w", err)
	}
	return cm.Data["index.html"], objects["configmaps demo/page"].Version, nil
}

var errTwoGateways = errors.New("the story needs two gateways: run frond dev up --edges 2 first")
