package devcluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metric returns the sum of one metric of a cloudcore or gateway over those of its label sets that hold all the given
// name=value pairs. Of a histogram it is the number of observations. A metric that is not there is 0.
func (c *Cluster) Metric(ctx context.Context, part, name string, labels ...string) (float64, error) {
	client, address := http.DefaultClient, "http://"+loopback(c.state.Ports[part])
	if strings.HasPrefix(part, "edge-") {
		socket := filepath.Join(filepath.Dir(c.layout.edge(part).api()), "health.sock")
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}
		client, address = &http.Client{Transport: transport}, "http://"+part
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", part, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", part, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	return sumMetric(io.LimitReader(resp.Body, mostReply), name, labels)
}

func sumMetric(text io.Reader, name string, labels []string) (float64, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	family := families[name]
	if family == nil {
		return 0, nil
	}
	var sum float64
	for _, m := range family.GetMetric() {
		found := 0
		for _, l := range m.GetLabel() {
			for _, want := range labels {
				if want == l.GetName()+"="+l.GetValue() {
					found++
				}
			}
		}
		if found == len(labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum, nil
}
