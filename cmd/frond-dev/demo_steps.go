package main

import (
	"context"
	"fmt"
	"time"
)

// Limits of the steps: generous enough for a slow two-core machine that compiles meanwhile.
const (
	podLimit    = 90 * time.Second
	arriveLimit = 30 * time.Second
	// volumeLimit: edgecore makes the kubelet sync its volumes every 10 s; upstream's default is once a minute.
	volumeLimit = 150 * time.Second
)

func (s *demoRun) showNodes(ctx context.Context) error {
	if s.dev.Spec().Edges < 2 {
		return errTwoGateways
	}
	s.printStep("The gateways are ordinary nodes")
	return s.showKubectl(ctx, "get", "nodes", "-o", "wide")
}

func (s *demoRun) deployDemo(ctx context.Context) error {
	s.printStep("Apply a Deployment with a ConfigMap and a Secret, as on any Kubernetes")
	if _, err := s.dev.Kubectl(ctx, "", "delete", "namespace", "demo", "--ignore-not-found"); err != nil { // of an earlier demo
		return err
	}
	if _, err := s.dev.Kubectl(ctx, demoManifests, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := retryUntil(ctx, podLimit, s.wantRunning(1)); err != nil {
		return err
	}
	if err := s.showKubectl(ctx, "get", "pods", "-n", "demo", "-o", "wide"); err != nil {
		return err
	}
	if !s.runsContainers() {
		s.printFact("both gateways report their pod Running (the hollow runtime acts it out: nothing serves the page)")
		return nil
	}
	for _, edge := range []string{cutEdge, linkedEdge} {
		for path, want := range map[string]string{"index.html": "version 1", "password.txt": "correct horse"} {
			err := retryUntil(ctx, arriveLimit, func(ctx context.Context) error { return s.wantPage(ctx, edge, path, want) })
			if err != nil {
				return err
			}
		}
		s.printFact("%s: the pod serves the ConfigMap and the Secret from its volumes", edge)
	}
	return nil
}

func (s *demoRun) checkStores(ctx context.Context) error {
	s.printStep("Each gateway holds what its pods need on its own disk, and nothing else")
	for _, edge := range []string{cutEdge, linkedEdge} {
		objects, err := s.listHeld(ctx, edge)
		if err != nil {
			return err
		}
		for _, need := range []string{"configmaps demo/page", "secrets demo/password"} {
			if _, ok := objects[need]; !ok {
				return fmt.Errorf("%s does not hold %s", edge, need)
			}
		}
		if _, ok := objects["secrets demo/unrelated"]; ok {
			return fmt.Errorf("%s holds a Secret that no pod of it uses", edge)
		}
		s.printFact("%s holds %d objects of the demo; the Secret that no pod uses is not among them", edge, len(objects))
	}
	return nil
}

func (s *demoRun) cutLink(ctx context.Context) (err error) {
	s.printStep("Cut the link of %s: every packet is dropped from now on, without an error at either end", cutEdge)
	if s.podsBefore, err = s.listPods(ctx, cutEdge); err != nil {
		return err
	}
	if err := s.dev.Cut(ctx, cutEdge, false); err != nil {
		return err
	}
	for _, e := range s.dev.Status(ctx).Edges {
		if e.Name == cutEdge && e.Link != "cut" {
			return fmt.Errorf("the link of %s is %s", cutEdge, e.Link)
		}
	}
	s.printFact("frond dev status shows the link of %s as cut", cutEdge)
	return nil
}

func (s *demoRun) changeWhileCut(ctx context.Context) error {
	s.printStep("Meanwhile change the ConfigMap %d times and scale the Deployment from 2 to 4", lastVersion-1)
	for v := 2; v <= lastVersion; v++ {
		patch := fmt.Sprintf(`{"data":{"index.html":"version %d"}}`, v)
		if _, err := s.dev.Kubectl(ctx, "", "patch", "configmap", "page", "-n", "demo", "--type=merge", "-p", patch); err != nil {
			return err
		}
	}
	if _, err := s.dev.Kubectl(ctx, "", "scale", "deployment", "web", "-n", "demo", "--replicas=4"); err != nil {
		return err
	}
	var err error
	if s.version, err = s.dev.Kubectl(ctx, "", "get", "configmap", "page", "-n", "demo", "-o", "jsonpath={.metadata.resourceVersion}"); err != nil {
		return err
	}
	err = retryUntil(ctx, arriveLimit, func(ctx context.Context) error { return s.wantHeld(ctx, linkedEdge, lastVersion) })
	if err != nil {
		return err
	}
	s.printFact("%s holds version %d", linkedEdge, lastVersion)
	if err := s.wantHeld(ctx, cutEdge, 1); err != nil {
		return err
	}
	s.printFact("%s still holds version 1", cutEdge)
	return nil
}

// wantHeld fails unless a gateway's store holds this version of the page.
func (s *demoRun) wantHeld(ctx context.Context, edge string, version int) error {
	text, _, err := s.readPage(ctx, edge)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("version %d", version); text != want {
		return fmt.Errorf("%s holds %q, want %q", edge, text, want)
	}
	return nil
}

func (s *demoRun) checkWhileCut(ctx context.Context) error {
	s.printStep("%s stays alone for %s; its pod goes on", cutEdge, s.offlineFor)
	if !s.runsContainers() {
		return waitFor(ctx, s.offlineFor)
	}
	asked := 0
	for end := time.Now().Add(s.offlineFor); time.Now().Before(end); asked++ {
		for name, p := range s.podsBefore {
			if _, err := s.dev.FromEdge(ctx, cutEdge, "http://"+p.Status.PodIP+":8080/"); err != nil {
				return fmt.Errorf("pod %s stopped serving while the link was cut: %w", name, err)
			}
		}
		if err := waitFor(ctx, min(time.Second, s.offlineFor)); err != nil {
			return err
		}
	}
	s.printFact("asked from inside the gateway, it answered %d of %d times", asked, asked)
	return nil
}

// waitFor waits for a duration.
func waitFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (s *demoRun) healLink(ctx context.Context) error {
	s.printStep("Heal the link")
	if err := s.dev.Heal(ctx, cutEdge); err != nil {
		return err
	}
	s.healedAt = time.Now()
	err := retryUntil(ctx, 2*arriveLimit, func(ctx context.Context) error {
		_, version, err := s.readPage(ctx, cutEdge)
		if err == nil && version != s.version {
			err = fmt.Errorf("%s holds the ConfigMap at resourceVersion %s, want %s", cutEdge, version, s.version)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.wantHeld(ctx, cutEdge, lastVersion); err != nil {
		return err
	}
	s.printFact("%.1f s later %s holds version %d, resourceVersion %s: exactly the last state",
		time.Since(s.healedAt).Seconds(), cutEdge, lastVersion, s.version)
	return nil
}

func (s *demoRun) checkRecovered(ctx context.Context) error {
	s.printStep("Everything is as asked for, and nothing was restarted")
	if err := retryUntil(ctx, podLimit, s.wantRunning(2)); err != nil {
		return err
	}
	s.printFact("%.1f s after the heal 4 pods are Running, 2 on each gateway", time.Since(s.healedAt).Seconds())
	now, err := s.listPods(ctx, cutEdge)
	if err != nil {
		return err
	}
	for name, old := range s.podsBefore {
		p, ok := now[name]
		if !ok || p.UID != old.UID {
			return fmt.Errorf("pod %s of %s was replaced", name, cutEdge)
		}
		for i, c := range p.Status.ContainerStatuses {
			if c.ContainerID != old.Status.ContainerStatuses[i].ContainerID || c.RestartCount != 0 {
				return fmt.Errorf("a container of pod %s of %s was restarted", name, cutEdge)
			}
		}
	}
	s.printFact("the pod that %s ran before the cut is the same container, with 0 restarts", cutEdge)
	if err := s.showKubectl(ctx, "get", "pods", "-n", "demo", "-o", "wide"); err != nil || !s.runsContainers() {
		return err
	}
	_, _ = fmt.Fprintln(s.out, "           (a kubelet looks at its volumes every now and then: wait for that)")
	for _, edge := range []string{cutEdge, linkedEdge} {
		err := retryUntil(ctx, volumeLimit, func(ctx context.Context) error {
			return s.wantPage(ctx, edge, "index.html", fmt.Sprintf("version %d", lastVersion))
		})
		if err != nil {
			return err
		}
		s.printFact("%s: all pods serve version %d", edge, lastVersion)
	}
	return nil
}
