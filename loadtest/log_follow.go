package loadtest

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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// logFollow follows the log of one pod on each gateway with many concurrent readers. Each reader must get every line in order.
// After the readers end, cloudcores and gateways must have as few streams and goroutines as before.
type logFollow struct {
	// readers is the number of readers in all, length the number of lines of each log.
	readers, length int
	// direct opens a tunnel for each reader, as the apiserver does for exec. Otherwise the readers use the apiserver, which
	// shares one connection for the logs of a node.
	direct bool
	// first is the number of logs opened one after the other, beforehand.
	first int
	// collected waits at the end until every process has collected its garbage, which an idle one does every 2 min. Then none may have a
	// larger heap than before.
	collected bool

	open func(ctx context.Context, pod string) (io.ReadCloser, error)
}

const (
	followPod = "follow"
	// linePause spaces lines, so that readers wait for most of them.
	linePause = 50 * time.Millisecond
	lineBytes = 100
)

func (s logFollow) scenario() scenario {
	if s.direct {
		return scenario{"logs -f, a tunnel each", s.run}
	}
	return scenario{"logs -f", s.run}
}

// run determines how many readers this machine allows, starts the pods, reads the logs, and waits until all resources are released.
func (s logFollow) run(ctx context.Context, w *Environment) error {
	allowed, err := allowedFollowers(s.readers)
	if err != nil {
		return err
	}
	if allowed < s.readers {
		w.logProgress("%s: %d readers of %d: fs.inotify.max_user_instances allows no more on one machine", w.name, allowed, s.readers)
		s.readers = allowed
	}
	s.open = func(ctx context.Context, pod string) (io.ReadCloser, error) { return followLog(ctx, w, pod) }
	if s.direct {
		if s.open, err = kubeletLogs(ctx, w); err != nil {
			return err
		}
	}
	pods := s.logPods(w)
	if err := w.launchPods(ctx, pods...); err != nil {
		return err
	}
	for i := range max(s.first, len(pods)) { // the apiserver keeps a connection to each node from now on
		began := time.Now()
		body, err := s.open(ctx, pods[i%len(pods)].Name)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(body, make([]byte, 1))
		if err = errors.Join(err, body.Close()); err != nil {
			return err
		}
		w.recordTime(measure{text: "asked for → first byte, one after the other"}, time.Since(began))
	}
	before, err := readStreamCosts(ctx, w)
	if err != nil {
		return err
	}
	var memory followMemory
	if err := memory.recordMoment(ctx, w, memoryBefore); err != nil {
		return err
	}
	if err := s.followAll(ctx, w, pods, &memory); err != nil {
		return err
	}
	if err := awaitReleased(ctx, w, before); err != nil {
		return err
	}
	if s.collected {
		if err := awaitCollected(ctx, w, before); err != nil {
			return err
		}
	}
	if err := memory.recordMoment(ctx, w, memoryAfter); err != nil {
		return err
	}
	memory.report(w)
	return nil
}

// logLine returns line i of a log.
func logLine(i int) string {
	number := fmt.Sprintf("%06d ", i)
	return number + strings.Repeat("x", lineBytes-len(number))
}

// logPods returns one pod for each gateway, whose container writes the lines and keeps running.
func (s logFollow) logPods(w *Environment) (list []*corev1.Pod) {
	var script strings.Builder
	for i := range s.length {
		fmt.Fprintf(&script, "echo %s; sleep %g; ", logLine(i), linePause.Seconds())
	}
	script.WriteString("sleep infinity")
	for _, edge := range w.edgeNames() {
		p := pausePod(followPod+"-"+edge, edge, nil)
		p.Spec.Containers[0].Command = []string{"sh", "-c", script.String()}
		list = append(list, p)
	}
	return list
}

// followAll runs all readers; none closes its stream before the last has read its last line.
func (s logFollow) followAll(ctx context.Context, w *Environment, pods []*corev1.Pod, memory *followMemory) error {
	var mu sync.Mutex // guards w
	var read sync.WaitGroup
	all := make(chan struct{}) // closes when all have read everything, or one has failed
	g, gctx := errgroup.WithContext(ctx)
	name := fmt.Sprintf("%d readers on %d gateways", s.readers, len(w.edgeNames()))
	began := time.Now()
	read.Add(s.readers)
	for i := range s.readers {
		g.Go(func() error {
			asked := time.Now()
			body, err := s.open(gctx, pods[i%len(pods)].Name)
			if err == nil {
				defer func() { _ = body.Close() }() // given up
				err = readLines(body, s.length, func() {
					mu.Lock()
					defer mu.Unlock()
					w.recordTime(measure{text: name + ": asked for all at once → first line of each"}, time.Since(asked))
				})
			}
			read.Done()
			if err != nil {
				return fmt.Errorf("reader %d of %s: %w", i, pods[i%len(pods)].Name, err)
			}
			select {
			case <-all:
			case <-gctx.Done():
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(all)
		read.Wait()
		rate := perSecond(s.readers*s.length, time.Since(began))
		mu.Lock()
		defer mu.Unlock()
		w.record(measure{text: fmt.Sprintf("  lines of %d bytes to all, as fast as they were written", lineBytes), unit: unitRate}, rate)
		return memory.recordMoment(gctx, w, memoryWith)
	})
	return g.Wait()
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

// followLog follows the log of a pod through the apiserver.
func followLog(ctx context.Context, w *Environment, pod string) (io.ReadCloser, error) {
	return w.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
}

// kubeletLogs follows the log of a pod as the apiserver would, but each over a tunnel of its own.
func kubeletLogs(ctx context.Context, w *Environment) (func(ctx context.Context, pod string) (io.ReadCloser, error), error) {
	egress, secret, err := w.cluster.Egress()
	if err != nil {
		return nil, err
	}
	kubelets := map[string]string{}
	for _, edge := range w.edgeNames() {
		node, err := w.kube.CoreV1().Nodes().Get(ctx, edge, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("find the kubelet of %s: %w", edge, err)
		}
		kubelets[followPod+"-"+edge] = fmt.Sprintf("https://%s:%d", edge, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(egress) }, TLSClientConfig: secret, DisableKeepAlives: true,
	}} // without ForceAttemptHTTP2 it speaks HTTP/1.1
	return func(ctx context.Context, pod string) (io.ReadCloser, error) {
		path := fmt.Sprintf("%s/containerLogs/%s/%s/pause?follow=true", kubelets[pod], namespace, pod)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, errors.Join(fmt.Errorf("%s answers %s", path, response.Status), response.Body.Close())
		}
		return response.Body, nil
	}, nil
}
