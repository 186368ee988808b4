package devcluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metric returns the sum of one metric of a cloudcore or gateway over the label sets that contain all the given
// name=value pairs. For a histogram it returns the number of observations. A missing metric is 0.
func (c *Cluster) Metric(ctx context.Context, part, name string, labels ...string) (float64, error) {
	read := c.CloudMetrics
	if strings.HasPrefix(part, "edge-") {
		read = c.EdgeMetrics
	}
	text, err := read(ctx, part)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", part, err)
	}
	return sumMetric(strings.NewReader(text), name, labels)
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

// Scrape returns the URL at which Prometheus reads the gateways' metrics, and the file of the CA of its certificate.
func (c *Cluster) Scrape() (url, caFile string) {
	return "https://" + loopbackAddress(c.state.Ports["scrape"]), filepath.Join(c.layout.pkiDir(), "egress-ca.crt")
}

// Egress returns the URL at which the apiserver opens connections to nodes, and its client certificates for there and for kubelets.
func (c *Cluster) Egress() (url string, secret *tls.Config, err error) {
	secret, err = clientTLS(filepath.Join(c.layout.pkiDir(), "egress-ca.crt"), filepath.Join(c.layout.pkiDir(), "apiserver-egress"))
	if err != nil {
		return "", nil, err
	}
	kubelet, err := clientTLS(filepath.Join(c.layout.pkiDir(), "ca.crt"), filepath.Join(c.layout.pkiDir(), "kubelet-client"))
	if err != nil {
		return "", nil, err
	}
	ca, err := os.ReadFile(filepath.Join(c.layout.pkiDir(), "ca.crt"))
	if err != nil {
		return "", nil, fmt.Errorf("read authority: %w", err)
	}
	secret.RootCAs.AppendCertsFromPEM(ca)
	secret.Certificates = append(secret.Certificates, kubelet.Certificates...) // each server names the CA that it accepts
	return "https://" + loopbackAddress(c.state.Ports["egress"]), secret, nil
}
