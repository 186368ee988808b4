package main

import (
	"context"
	"fmt"
	"time"
)

// Limits of the chapters: what a slow two-core machine that compiles beside needs, not what one hopes for.
const (
	podLimit    = 90 * time.Second
	arriveLimit = 30 * time.Second
	// volumeLimit: edgecore lets the kubelet look at its volumes each 10 s; upstream it is once a minute.
	volumeLimit = 150 * time.Second
)

func (s *story) nodes(ctx context.Context) error {
	if s.dev.Spec().Edges < 2 {
		return errTwoGateways
	}
	s.step("The gateways are ordinary nodes")
	return s.show(ctx, "get", "nodes", "-o", "wide")
}

func (s *story) deploy(ctx context.Context) error {
	s.step("Apply a Deployment with a ConfigMap and a Secret, as on any Kubernetes")
	if _, err := s.dev.Kubectl(ctx, "", "delete", "namespace", "demo", "--ignore-not-found"); err != nil { // of an earlier demo
		return err
	}
	if _, err := s.dev.Kubectl(ctx, demoManifests, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := until(ctx, podLimit, s.wantRunning(1)); err != nil {
		return err
	}
	if err := s.show(ctx, "get", "pods", "-n", "demo", "-o", "wide"); err != nil {
		return err
	}
	if !s.containers() {
		s.fact("both gateways report their pod Running (the hollow runtime acts it out: nothing serves the page)")
		return nil
	}
	for _, edge := range []string{far, near} {
		for path, want := range map[string]string{"index.html": "version 1", "password.txt": "correct horse"} {
			err := until(ctx, arriveLimit, func(ctx context.Context) error { return s.wantPage(ctx, edge, path, want) })
			if err != nil {
				return err
			}
		}
		s.fact("%s: the pod serves the ConfigMap and the Secret from its volumes", edge)
	}
	return nil
}

func (s *story) stores(ctx context.Context) error {
	s.step("Each gateway holds what its pods need on its own disk, and nothing else")
	for _, edge := range []string{far, near} {
		objects, err := s.held(ctx, edge)
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
		s.fact("%s holds %d objects of the demo; the Secret that no pod uses is not among them", edge, len(objects))
	}
	return nil
}

func (s *story) cut(ctx context.Context) (err error) {
	s.step("Cut the link of %s: every packet is dropped from now on, without an error at either end", far)
	if s.before, err = s.pods(ctx, far); err != nil {
		return err
	}
	if err := s.dev.Cut(ctx, far, false); err != nil {
		return err
	}
	for _, e := range s.dev.Status(ctx).Edges {
		if e.Name == far && e.Link != "cut" {
			return fmt.Errorf("the link of %s is %s", far, e.Link)
		}
	}
	s.fact("frond dev status shows the link of %s as cut", far)
	return nil
}

func (s *story) meanwhile(ctx context.Context) error {
	s.step("Meanwhile change the ConfigMap %d times and scale the Deployment from 2 to 4", lastPage-1)
	for v := 2; v <= lastPage; v++ {
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
	err = until(ctx, arriveLimit, func(ctx context.Context) error { return s.wantHeld(ctx, near, lastPage) })
	if err != nil {
		return err
	}
	s.fact("%s holds version %d", near, lastPage)
	if err := s.wantHeld(ctx, far, 1); err != nil {
		return err
	}
	s.fact("%s still holds version 1", far)
	return nil
}

// wantHeld fails unless a gateway's store holds this version of the page.
func (s *story) wantHeld(ctx context.Context, edge string, version int) error {
	text, _, err := s.page(ctx, edge)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("version %d", version); text != want {
		return fmt.Errorf("%s holds %q, want %q", edge, text, want)
	}
	return nil
}

func (s *story) darkness(ctx context.Context) error {
	s.step("%s stays alone for %s; its pod goes on", far, s.dark)
	if !s.containers() {
		return wait(ctx, s.dark)
	}
	asked := 0
	for end := time.Now().Add(s.dark); time.Now().Before(end); asked++ {
		for name, p := range s.before {
			if _, err := s.dev.FromEdge(ctx, far, "http://"+p.Status.PodIP+":8080/"); err != nil {
				return fmt.Errorf("pod %s stopped serving while the link was cut: %w", name, err)
			}
		}
		if err := wait(ctx, min(time.Second, s.dark)); err != nil {
			return err
		}
	}
	s.fact("asked from inside the gateway, it answered %d of %d times", asked, asked)
	return nil
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (s *story) heal(ctx context.Context) error {
	s.step("Heal the link")
	if err := s.dev.Heal(ctx, far); err != nil {
		return err
	}
	s.healed = time.Now()
	err := until(ctx, 2*arriveLimit, func(ctx context.Context) error {
		_, version, err := s.page(ctx, far)
		if err == nil && version != s.version {
			err = fmt.Errorf("%s holds the ConfigMap at resourceVersion %s, want %s", far, version, s.version)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.wantHeld(ctx, far, lastPage); err != nil {
		return err
	}
	s.fact("%.1f s later %s holds version %d, resourceVersion %s: exactly the last state",
		time.Since(s.healed).Seconds(), far, lastPage, s.version)
	return nil
}

func (s *story) afterwards(ctx context.Context) error {
	s.step("Everything is as asked for, and nothing was restarted")
	if err := until(ctx, podLimit, s.wantRunning(2)); err != nil {
		return err
	}
	s.fact("%.1f s after the heal 4 pods are Running, 2 on each gateway", time.Since(s.healed).Seconds())
	now, err := s.pods(ctx, far)
	if err != nil {
		return err
	}
	for name, old := range s.before {
		p, ok := now[name]
		if !ok || p.Metadata.UID != old.Metadata.UID {
			return fmt.Errorf("pod %s of %s was replaced", name, far)
		}
		for i, c := range p.Status.Containers {
			if c.ID != old.Status.Containers[i].ID || c.Restarts != 0 {
				return fmt.Errorf("a container of pod %s of %s was restarted", name, far)
			}
		}
	}
	s.fact("the pod that %s ran before the cut is the same container, with 0 restarts", far)
	if err := s.show(ctx, "get", "pods", "-n", "demo", "-o", "wide"); err != nil || !s.containers() {
		return err
	}
	_, _ = fmt.Fprintln(s.out, "           (a kubelet looks at its volumes every now and then: wait for that)")
	for _, edge := range []string{far, near} {
		err := until(ctx, volumeLimit, func(ctx context.Context) error {
			return s.wantPage(ctx, edge, "index.html", fmt.Sprintf("version %d", lastPage))
		})
		if err != nil {
			return err
		}
		s.fact("%s: all pods serve version %d", edge, lastPage)
	}
	return nil
}
