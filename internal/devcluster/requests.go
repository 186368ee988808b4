package devcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// maxReplySize bounds the bytes read of an answer: the store of a gateway with 10,000 objects fits.
const maxReplySize = 64 << 20

// clientKind selects the client certificate of a request.
type clientKind int

const (
	plainClient clientKind = iota // plain HTTP
	kubeClient                    // the cluster's admin
	etcdClient                    // as the apiserver
)

// requestComponent sends a request to a component on the host's loopback and decodes the JSON answer into v, unless v is nil.
func (c *Cluster) requestComponent(ctx context.Context, kind clientKind, part, path string, v any) error {
	scheme, transport := "https", &http.Transport{DisableKeepAlives: true}
	var err error
	switch p := c.layout.pkiDir(); kind {
	case plainClient:
		scheme = "http"
	case kubeClient:
		transport.TLSClientConfig, err = clientTLS(filepath.Join(p, "ca.crt"), filepath.Join(p, "client-kubeconfig"))
	case etcdClient:
		transport.TLSClientConfig, err = clientTLS(filepath.Join(p, "etcd-ca.crt"), filepath.Join(p, "apiserver-etcd"))
	}
	if err != nil {
		return err
	}
	return sendRequest(ctx, transport, http.MethodGet, scheme+"://"+loopbackAddress(c.state.Ports[part])+path, v)
}

// requestSocket sends a request to a server on a unix socket.
func (c *Cluster) requestSocket(ctx context.Context, socket, method, path string, v any) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return sendRequest(ctx, transport, method, "http://localhost"+path, v)
}

// sendRequest sends a request without a body and closes its connection afterwards.
func sendRequest(ctx context.Context, transport *http.Transport, method, url string, v any) error {
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err // names method and URL
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReplySize))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", url, err)
	}
	if response.StatusCode/100 != 2 {
		return &statusError{URL: url, Code: response.StatusCode, Body: strings.TrimSpace(string(body))}
	}
	if v == nil {
		return nil
	}
	if raw, ok := v.(*json.RawMessage); ok {
		*raw = body
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("understand answer of %s: %w", url, err)
	}
	return nil
}

// statusError is an answer other than success.
type statusError struct {
	URL  string
	Code int
	Body string
}

func (e *statusError) Error() string {
	var status struct {
		Message string `json:"message"`
	}
	text := e.Body
	if json.Unmarshal([]byte(e.Body), &status) == nil && status.Message != "" {
		text = status.Message
	}
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%s answers %d: %s", e.URL, e.Code, text)
}

// clientTLS returns a TLS configuration with the client certificate in the files pair.crt and pair.key.
func clientTLS(caFile, pair string) (*tls.Config, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(pair+".crt", pair+".key")
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, nil
}

// nodeObject has the fields of a Kubernetes Node that are read here.
type nodeObject struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// condition returns the status of a condition, "" if the node has none of that type.
func (n nodeObject) condition(kind string) (status, message string) {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c.Status, c.Message
		}
	}
	return "", ""
}

// edgeReady checks edgecore itself and the Node: after a restart the Node alone still shows its earlier state.
func (c *Cluster) edgeReady(ctx context.Context, name string) error {
	if _, err := c.FromEdge(ctx, name, "http://"+loopbackAddress(c.state.Ports[name])+"/readyz"); err != nil {
		return err
	}
	var n nodeObject
	if err := c.requestComponent(ctx, kubeClient, "apiserver", "/api/v1/nodes/"+name, &n); err != nil {
		return err
	}
	if status, message := n.condition("Ready"); status != "True" {
		return fmt.Errorf("node %s: %w: %s", name, errNotReady, message)
	}
	return nil
}

func (c *Cluster) ctrVersion(ctx context.Context, edge string) error {
	cmd := exec.CommandContext(ctx, c.state.Programs.Ctr, "-a", c.layout.edgeFiles(edge).containerdSocket(), "version")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ask containerd: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Kubectl runs kubectl as the cluster's admin and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.layout.programFile("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.layout.kubeconfigFile())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	return "", fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
}

// FromEdge gets a URL, whose host is an IP address, from inside the gateway's network namespace where it has one. It returns
// the body.
func (c *Cluster) FromEdge(ctx context.Context, edge, url string) (string, error) {
	if err := c.mustBeEdge(edge); err != nil {
		return "", err
	}
	namespace := ""
	if c.state.Spec.Runtime == Containerd {
		namespace = c.wanNetwork().Namespace(edge)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return wan.Dial(ctx, namespace, address)
	}}
	var body json.RawMessage
	err := sendRequest(ctx, transport, http.MethodGet, url, &body)
	return string(body), err
}

// EdgeMetrics returns /metrics of a gateway's edgecore.
func (c *Cluster) EdgeMetrics(ctx context.Context, edge string) (string, error) {
	return c.FromEdge(ctx, edge, "http://"+loopbackAddress(c.state.Ports[edge])+"/metrics")
}

// CloudMetrics returns /metrics of a cloudcore.
func (c *Cluster) CloudMetrics(ctx context.Context, name string) (string, error) {
	var body json.RawMessage
	err := c.requestComponent(ctx, plainClient, name, "/metrics", &body)
	return string(body), err
}
