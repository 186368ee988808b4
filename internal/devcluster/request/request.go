// Package request sends requests to the components of a development cluster, on loopback or a unix socket.
package request

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/internal/devcluster/folder"
)

// maxReplySize bounds the bytes read of an answer: the store of a gateway with 10,000 objects fits.
const maxReplySize = 64 << 20

// Client selects the client certificate of a request.
type Client int

// The client certificates.
const (
	Plain Client = iota // plain HTTP
	Kube                // the cluster's admin
	Etcd                // as the apiserver
)

// Component sends a request to a component on the host's loopback and decodes the JSON answer into v, unless v is nil.
func Component(ctx context.Context, f *folder.Folder, kind Client, part, path string, v any) error {
	scheme, transport := "https", &http.Transport{DisableKeepAlives: true}
	var err error
	switch p := f.Layout.PKIDir(); kind {
	case Plain:
		scheme = "http"
	case Kube:
		transport.TLSClientConfig, err = ClientTLS(filepath.Join(p, "ca.crt"), filepath.Join(p, "client-kubeconfig"))
	case Etcd:
		transport.TLSClientConfig, err = ClientTLS(filepath.Join(p, "etcd-ca.crt"), filepath.Join(p, "apiserver-etcd"))
	}
	if err != nil {
		return err
	}
	return Send(ctx, transport, http.MethodGet, scheme+"://"+folder.Loopback(f.State.Ports[part])+path, v)
}

// Socket sends a request to a server on a unix socket.
func Socket(ctx context.Context, socket, method, path string, v any) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return Send(ctx, transport, method, "http://localhost"+path, v)
}

// Send sends a request without a body and closes its connection afterwards.
func Send(ctx context.Context, transport *http.Transport, method, url string, v any) error {
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
		return &StatusError{URL: url, Code: response.StatusCode, Body: strings.TrimSpace(string(body))}
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

// StatusError is an answer other than success.
type StatusError struct {
	URL  string
	Code int
	Body string
}

func (e *StatusError) Error() string {
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

// ClientTLS returns a TLS configuration with the client certificate in the files pair.crt and pair.key.
func ClientTLS(caFile, pair string) (*tls.Config, error) {
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
