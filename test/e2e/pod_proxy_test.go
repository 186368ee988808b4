package e2e_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodProxy_ReachesGatewayPods requests the name of each pod of a Service on both gateways: by pods/NAME/proxy, by
// services/NAME/proxy, and at the Service's address as kube-apiserver calls webhooks and aggregated APIs.
func TestPodProxy_ReachesGatewayPods(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, webDeployment("proxied", 2)+`---
apiVersion: v1
kind: Service
metadata: {name: proxied}
spec: {selector: {app: proxied}, ports: [{name: web, port: 80, targetPort: 8080}]}
`)
	list := awaitRunning(t, "app=proxied", 2)
	names := map[string]bool{}
	for _, pod := range list {
		names[pod.Name] = true
		path := "/api/v1/namespaces/default/pods/" + pod.Name + ":8080/proxy/hostname"
		eventually(t, pod.Name+" says its name", func(ctx context.Context) string {
			out, err := shared.Kubectl(ctx, "", "get", "--raw", path)
			if err != nil {
				return err.Error()
			}
			if got := strings.TrimSpace(out); got != pod.Name {
				t.Fatalf("asked %s, %s answered", pod.Name, got)
			}
			return ""
		})
	}
	heard := func(what string, ask func(ctx context.Context) (string, error)) {
		t.Helper()
		seen := map[string]bool{}
		eventually(t, "both pods answer for "+what, func(ctx context.Context) string {
			out, err := ask(ctx)
			if err != nil {
				return err.Error()
			}
			name := strings.TrimSpace(out)
			if !names[name] {
				t.Fatalf("%s answered for %s", name, what)
			}
			if seen[name] = true; len(seen) < len(names) {
				return fmt.Sprint("heard ", seen)
			}
			return ""
		})
	}
	heard("the Service", func(ctx context.Context) (string, error) {
		return shared.Kubectl(ctx, "", "get", "--raw", "/api/v1/namespaces/default/services/proxied:web/proxy/hostname")
	})
	service, err := sharedKube.CoreV1().Services("default").Get(t.Context(), "proxied", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	heard("the ClusterIP", func(ctx context.Context) (string, error) {
		return throughEgress(ctx, service.Spec.ClusterIP+":80", "/hostname")
	})

	_, err = shared.Kubectl(t.Context(), "", "get", "--raw", "/api/v1/namespaces/default/pods/"+list[0].Name+":8081/proxy/")
	if err == nil || !strings.Contains(err.Error(), "nothing answers at "+list[0].Status.PodIP+":8081") {
		t.Errorf("a port that nobody listens on: %v", err)
	}
}

// throughEgress sends a request as kube-apiserver does, by CONNECT through a cloudcore.
func throughEgress(ctx context.Context, target, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	egress, secret, err := shared.Egress()
	if err != nil {
		return "", err
	}
	proxy, err := url.Parse(egress)
	if err != nil {
		return "", err
	}
	conn, err := (&tls.Dialer{Config: secret}).DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r := bufio.NewReader(conn)
	for _, request := range []string{"CONNECT " + target, "GET " + path} {
		if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: %s\r\n\r\n", request, target); err != nil {
			return "", err
		}
		response, err := http.ReadResponse(r, nil)
		if err != nil {
			return "", err
		}
		if response.StatusCode != http.StatusOK {
			_ = response.Body.Close()
			return "", fmt.Errorf("%s: %s", request, response.Status)
		}
		if strings.HasPrefix(request, "CONNECT") {
			continue // the server's answer follows
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		return string(body), err
	}
	return "", nil
}
