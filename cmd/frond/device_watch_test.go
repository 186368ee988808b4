package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/cmd/frond/devicetext"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// deviceWatch is a running frond device watch.
type deviceWatch struct {
	t      *testing.T
	lines  chan string
	stop   context.CancelFunc
	result chan error
}

// startWatch runs frond device watch until the test ends.
func startWatch(t *testing.T, kubeconfig string, args ...string) *deviceWatch {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	in, out := io.Pipe()
	w := &deviceWatch{t: t, lines: make(chan string, 1000), stop: stop, result: make(chan error, 1)}
	root := newRoot()
	root.SetArgs(append([]string{"device", "watch", "--kubeconfig", kubeconfig}, args...))
	root.SetOut(out)
	root.SetErr(io.Discard)
	root.SilenceErrors, root.SilenceUsage = true, true
	go func() {
		w.result <- root.ExecuteContext(ctx)
		_ = out.Close()
	}()
	go func() {
		defer close(w.lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			w.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		stop()
		if err := <-w.result; err != nil {
			t.Errorf("watch ends with %v", err)
		}
		for range w.lines { // until it is closed
			continue
		}
	})
	return w
}

// await returns the lines up to one with a text.
func (w *deviceWatch) await(text string) (before []string) {
	w.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case line, ok := <-w.lines:
			switch {
			case !ok:
				w.t.Fatalf("the watch has ended; wanted %q after %q", text, before)
			case strings.Contains(line, text):
				return before
			}
			before = append(before, line)
		case <-limit:
			w.t.Fatalf("no line with %q, but %q", text, before)
		}
	}
}

// TestDevice_Watch: each change is a line, also after the connections to the apiserver were cut, and only of the devices that were asked for.
func TestDevice_Watch(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("w1", "gw-1")
	i.putDevice("w2", "gw-2")
	i.report("w1", 1, "60", "True", "True")
	cfg := *sharedCluster.Cluster(t).Config()
	relay := relaytest.Start(t, strings.TrimPrefix(cfg.Host, "https://"), relaytest.Config{})
	cfg.Host = "https://" + relay.Addr()
	relayed := kubeconfigOf(t, &cfg)
	one, all, node := startWatch(t, relayed, "w1"), startWatch(t, relayed, "-A", "-o", "json", "--watch-only"), startWatch(t, relayed, "--node", "gw-2")
	one.await("default/w1  device: present")
	one.await("reported setpoint: 60")
	one.await("condition Applied: True (Applied is True)")
	node.await("default/w2  device: present")
	i.setState("w1", "offline", "")
	if before := one.await("state: online -> offline"); len(before) != 0 {
		t.Errorf("before the state: %q", before)
	}
	relay.Cut()
	i.mustRun("device", "set", "w2", "setpoint=65")
	i.setState("w1", "online", "")
	relay.Heal()
	one.await("state: offline -> online")
	if before := node.await("default/w2  desired setpoint: 60 -> 65"); strings.Contains(strings.Join(before, "\n"), "w1") {
		t.Errorf("the watch of gw-2 prints %q", before)
	}
	kit.Must(t, i.devices(devices.DevicesResource).Delete(t.Context(), "w2", metav1.DeleteOptions{}))
	node.await("default/w2  device: present -> -")
	for found := false; !found; {
		var c devicetext.Change
		kit.Must(t, json.Unmarshal([]byte(kit.Receive(t, "a line of JSON", all.lines)), &c))
		if c.What == devicetext.WhatDevice && c.Value != nil {
			t.Errorf("--watch-only prints what was there: %+v", c)
		}
		found = c.Name == "w2" && c.What == devicetext.WhatDevice && c.Value == nil
	}
}

// TestDevice_WatchRefuses: what would wait for ever is an error.
func TestDevice_WatchRefuses(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("w3", "gw-1")
	for args, want := range map[string]string{"none": "not found", "w3 -A": "leave out NAME", "w3 --node gw-9": `is at "gw-1", not at "gw-9"`, "w3 -o yaml": "choose json"} {
		if code, _, errs := i.runCommand(append([]string{"device", "watch"}, strings.Fields(args)...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}
