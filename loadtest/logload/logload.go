// Package logload follows the logs of pods on gateways with many readers at once, and measures what that costs cloudcores, hub and gateways.
package logload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

const (
	// linePause spaces lines, so that readers wait for most of them.
	linePause = 50 * time.Millisecond
	lineBytes = 100
	// spareInstances of inotify are left to other processes of this machine.
	spareInstances = 8
)

// Load follows the log of one pod on each gateway. Each reader must get every line in order. After the readers end, cloudcores and gateways
// must have as few streams and goroutines as before.
type Load struct {
	Cluster *devcluster.Cluster
	Kube    kubernetes.Interface
	Objects *workload.Client
	Edges   []string
	// Readers is the number of readers in all, Lines the number of lines of each log, First the number of logs opened one after the other,
	// beforehand.
	Readers, Lines, First int
	// Collected waits at the end until every process has collected its garbage, which an idle one does every 2 min. Then none may have a
	// larger heap than before.
	Collected bool
	Recorder  *results.Recorder
}

func podName(edge string) string { return "follow-" + edge }

// openLog follows the log of the pod on a gateway.
type openLog func(ctx context.Context, edge string) (io.ReadCloser, error)

// RunShared reads through the apiserver, which shares one connection for the logs of a node.
func (l *Load) RunShared(ctx context.Context) error {
	return l.run(ctx, func(ctx context.Context, edge string) (io.ReadCloser, error) {
		return l.Kube.CoreV1().Pods(workload.Namespace).GetLogs(podName(edge), &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	})
}

// RunDirect opens a tunnel for each reader, as the apiserver does for exec.
func (l *Load) RunDirect(ctx context.Context) error {
	egress, secret, err := l.Cluster.Egress()
	if err != nil {
		return err
	}
	ports := map[string]int32{}
	for _, edge := range l.Edges {
		node, err := l.Kube.CoreV1().Nodes().Get(ctx, edge, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find the kubelet of %s: %w", edge, err)
		}
		ports[edge] = node.Status.DaemonEndpoints.KubeletEndpoint.Port
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(egress) }, TLSClientConfig: secret, DisableKeepAlives: true,
	}} // without ForceAttemptHTTP2 it speaks HTTP/1.1
	return l.run(ctx, func(ctx context.Context, edge string) (io.ReadCloser, error) {
		address := fmt.Sprintf("https://%s:%d/containerLogs/%s/%s/pause?follow=true", edge, ports[edge], workload.Namespace, podName(edge))
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, errors.Join(fmt.Errorf("%s answers %s", address, response.Status), response.Body.Close())
		}
		return response.Body, nil
	})
}

// run determines how many readers this machine allows, starts the pods, reads the logs, and waits until all resources are released.
func (l *Load) run(ctx context.Context, open openLog) error {
	readers, err := allowedFollowers(l.Readers)
	if err != nil {
		return err
	}
	if err := l.launchPods(ctx); err != nil {
		return err
	}
	for i := range max(l.First, len(l.Edges)) { // the apiserver keeps a connection to each node from now on
		began := time.Now()
		body, err := open(ctx, l.Edges[i%len(l.Edges)])
		if err != nil {
			return err
		}
		_, err = io.ReadFull(body, make([]byte, 1))
		if err = errors.Join(err, body.Close()); err != nil {
			return err
		}
		took := results.Milliseconds(time.Since(began))
		l.Recorder.Record(results.Measure{Text: "asked for → first byte, one after the other", Unit: results.Time}, took)
	}
	before, err := l.readCosts(ctx)
	if err != nil {
		return err
	}
	with, err := l.followAll(ctx, readers, open)
	if err != nil {
		return err
	}
	if err := l.awaitReleased(ctx, before); err != nil {
		return err
	}
	after, err := l.readCosts(ctx)
	if err != nil {
		return err
	}
	l.recordCosts(before, with, after)
	return nil
}

// allowedFollowers returns how many logs can be followed on this machine now, at most as many as wanted. A kubelet takes an instance of
// inotify for each, and all gateways of a cluster run as one user, to whom fs.inotify.max_user_instances applies.
func allowedFollowers(wanted int) (int, error) {
	var open []int
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd) // it was never used
		}
	}()
	for len(open) < wanted+spareInstances {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break // the limit is reached
		}
		open = append(open, fd)
	}
	if len(open) <= spareInstances {
		return 0, fmt.Errorf("logs cannot be followed: %d instances of inotify are left (fs.inotify.max_user_instances)", len(open))
	}
	return len(open) - spareInstances, nil
}

// logLine returns line i of a log.
func logLine(i int) string {
	number := fmt.Sprintf("%06d ", i)
	return number + strings.Repeat("x", lineBytes-len(number))
}

// launchPods starts one pod on each gateway, whose container writes the lines and keeps running.
func (l *Load) launchPods(ctx context.Context) error {
	var script strings.Builder
	for i := range l.Lines {
		fmt.Fprintf(&script, "echo %s; sleep %g; ", logLine(i), linePause.Seconds())
	}
	script.WriteString("sleep infinity")
	var pods []*corev1.Pod
	for _, edge := range l.Edges {
		p := workload.PausePod(podName(edge), edge, nil)
		p.Spec.Containers[0].Command = []string{"sh", "-c", script.String()}
		pods = append(pods, p)
	}
	_, _, err := l.Objects.LaunchPods(ctx, pods...)
	return err
}

// followAll runs all readers and returns the costs while they are open: none closes its stream before the last has read its last line.
func (l *Load) followAll(ctx context.Context, readers int, open openLog) (costs map[string]streamCost, err error) {
	var read sync.WaitGroup
	all := make(chan struct{}) // closes when all have read everything, or one has failed
	g, gctx := errgroup.WithContext(ctx)
	first, rate := make([]float64, readers), 0.0
	began := time.Now()
	read.Add(readers)
	for i := range readers {
		g.Go(func() error {
			edge, asked := l.Edges[i%len(l.Edges)], time.Now()
			body, err := open(gctx, edge)
			if err == nil {
				defer func() { _ = body.Close() }() // given up
				err = readLines(body, l.Lines, func() { first[i] = results.Milliseconds(time.Since(asked)) })
			}
			read.Done()
			if err != nil {
				return fmt.Errorf("reader %d of %s: %w", i, edge, err)
			}
			select {
			case <-all:
			case <-gctx.Done():
			}
			return nil
		})
	}
	g.Go(func() (err error) {
		defer close(all)
		read.Wait()
		rate = results.PerSecond(readers*l.Lines, time.Since(began))
		costs, err = l.readCosts(gctx)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	of := fmt.Sprintf("%d readers on %d gateways: asked for all at once → first line of each", readers, len(l.Edges))
	l.Recorder.Record(results.Measure{Text: of, Unit: results.Time}, first...)
	l.Recorder.Record(results.Measure{Text: fmt.Sprintf("  lines of %d bytes to all, as fast as they were written", lineBytes), Unit: results.Rate}, rate)
	return costs, nil
}

// readLines reads a whole log and calls opened after its first line.
func readLines(body io.Reader, lines int, opened func()) error {
	scanner := bufio.NewScanner(body)
	for i := range lines {
		if !scanner.Scan() {
			return fmt.Errorf("line %d of %d: %w", i, lines, errors.Join(io.ErrUnexpectedEOF, scanner.Err()))
		}
		if got := scanner.Text(); got != logLine(i) {
			return fmt.Errorf("line %d is %.20q", i, got)
		}
		if i == 0 {
			opened()
		}
	}
	return nil
}
