package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// scrapePaths reads the scraped paths of a node from deploy/prometheus/scrape.yaml: job to path.
func scrapePaths(t *testing.T, node string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", "scrape.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Jobs []struct {
			Name    string `json:"job_name"`
			Relabel []struct {
				Sources     []string `json:"source_labels"`
				Target      string   `json:"target_label"`
				Replacement string   `json:"replacement"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for _, job := range file.Jobs {
		for _, rule := range job.Relabel {
			if rule.Target == "__metrics_path__" {
				paths[job.Name] = strings.ReplaceAll(rule.Replacement, "$1", node)
			}
		}
	}
	return paths
}

// TestPrometheus_ScrapesEveryGateway scrapes as deploy/prometheus configures, with the service account defined there.
func TestPrometheus_ScrapesEveryGateway(t *testing.T) {
	rbac, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	applyManifest(t, string(rbac))
	url, caFile := shared.Scrape()
	pem, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	get := func(ctx context.Context, token, path string) (int, string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			return 0, "", err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		reply, err := transport.RoundTrip(request) // which asks for gzip and unpacks it
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = reply.Body.Close() }()
		body, err := io.ReadAll(reply.Body)
		return reply.StatusCode, string(body), err
	}
	token := strings.TrimSpace(runKubectl(t, "create", "token", "frond-prometheus", "-n", "kube-system"))
	stranger := strings.TrimSpace(runKubectl(t, "create", "token", "default"))
	proof := map[string]string{ // content that only that path of that node has
		"frond-nodes": `kubelet_node_name{node="NODE"} 1`, "frond-cadvisor": "machine_cpu_cores", "frond-resource": "resource_scrape_error 0",
		"frond-probes": "process_start_time_seconds", "frond-edgecore": "frond_store_objects",
	}
	for _, node := range []string{"edge-1", "edge-2"} {
		for job, path := range scrapePaths(t, node) {
			want := strings.ReplaceAll(proof[job], "NODE", node)
			if want == "" {
				t.Fatalf("the test knows no proof for job %s", job)
			}
			eventually(t, job+" of "+node, func(ctx context.Context) string {
				code, body, err := get(ctx, token, path)
				if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
					return fmt.Sprintf("%d %.300q %v, want %q", code, body, err, want)
				}
				return ""
			})
		}
	}
	for name, tt := range map[string]struct {
		token, path string
		code        int
	}{
		"nobody":            {"x", "/nodes/edge-1/kubelet/metrics", http.StatusUnauthorized},
		"without rights":    {stranger, "/nodes/edge-1/kubelet/metrics", http.StatusForbidden},
		"edgecore, too":     {stranger, "/nodes/edge-1/edgecore/metrics", http.StatusForbidden},
		"something else":    {token, "/nodes/edge-1/kubelet/pods", http.StatusNotFound},
		"of no such node":   {token, "/nodes/edge-77/kubelet/metrics", http.StatusNotFound},
		"a summary as well": {token, "/nodes/edge-1/kubelet/stats/summary", http.StatusOK},
	} {
		if code, body, err := get(t.Context(), tt.token, tt.path); err != nil || code != tt.code {
			t.Errorf("%s: %d %.200q %v, want %d", name, code, body, err, tt.code)
		}
	}
}
