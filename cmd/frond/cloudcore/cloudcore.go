// Package cloudcore is a command's client of any cloudcore, with the credentials of the kubeconfig.
package cloudcore

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

const (
	// envCloudcore names the cloudcores where --server is not given.
	envCloudcore = "FROND_CLOUDCORE"
	// serverTimeout bounds the request to one of several cloudcores, so that a hanging one does not hide the others.
	serverTimeout = 15 * time.Second
	// maxAnswerBytes bounds an answer: 100,000 nodes, or the objects of a large one, fit.
	maxAnswerBytes = 256 << 20
)

// Client asks cloudcores. AddFlags comes first.
type Client struct {
	server, kubeconfig, context, authority string
	// hubCA are the hub's CAs, once they were fetched.
	hubCA []byte
}

// AddFlags adds the flags that name the cloudcore and the user.
func (c *Client) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.server, "server", "", "cloudcores to ask, https://host:port, separated by commas (default $"+envCloudcore+")")
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig whose user asks (default $KUBECONFIG, then ~/.kube/config)")
	flags.StringVar(&c.context, "context", "", "context of the kubeconfig")
	flags.StringVar(&c.authority, "certificate-authority", "", "CA of cloudcore's certificate (default the cluster's, then the hub's as frond init made it)")
}

var errNoServer = errors.New(`no cloudcore to ask: give --server or set ` + envCloudcore + `
  development cluster:  . .frond/env
  in a cluster:         kubectl --namespace frond-system port-forward deployment/cloudcore 10284
                        and --server https://127.0.0.1:10284`)

// GetJSON gets a path from the first cloudcore that answers; all answer alike.
func (c *Client) GetJSON(ctx context.Context, path string, into any) error {
	return c.askEach(ctx, request{method: http.MethodGet, path: path, timeout: serverTimeout}, into)
}

// PostJSON sends a request that has an effect to the first cloudcore that can be reached, once, and waits for its answer. The error is a *SentError if
// the request was sent and nobody knows what became of it. After any other error it had no effect.
func (c *Client) PostJSON(ctx context.Context, path string, body []byte, timeout time.Duration, into any) error {
	return c.askEach(ctx, request{method: http.MethodPost, path: path, body: body, timeout: timeout}, into)
}

// request is what cloudcore is asked.
type request struct {
	method, path string
	body         []byte
	timeout      time.Duration
}

// reader returns the body, which the transport cannot send twice; nil for none.
func (r request) reader() io.Reader {
	if r.body == nil {
		return nil
	}
	return io.NopCloser(bytes.NewReader(r.body))
}

// SentError reports a request that was sent and has no answer.
type SentError struct{ Err error }

func (e *SentError) Error() string { return e.Err.Error() }

// Unwrap returns why there is no answer.
func (e *SentError) Unwrap() error { return e.Err }

func (c *Client) askEach(ctx context.Context, r request, into any) error {
	servers := c.server
	if servers == "" {
		servers = os.Getenv(envCloudcore)
	}
	if servers == "" {
		return errNoServer
	}
	var faults []error
	for server := range strings.SplitSeq(servers, ",") {
		server = strings.TrimRight(strings.TrimSpace(server), "/")
		err := c.sendRequest(ctx, server, r, into)
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) && c.fetchAuthority(ctx) {
			err = c.sendRequest(ctx, server, r, into)
		}
		if sent := (*SentError)(nil); errors.As(err, &sent) {
			return err // another one would do it again
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		if refused := (&answerError{}); errors.As(err, &refused) && refused.isFinal() {
			return err // the others would answer the same
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// answerError is an answer other than success.
type answerError struct {
	server string
	code   int
	text   string
}

func (r *answerError) Error() string {
	switch r.code {
	case http.StatusUnauthorized:
		return fmt.Sprintf("%s does not know you: the kubeconfig needs a client certificate or a token of the cluster that this cloudcore serves", r.server)
	case http.StatusForbidden:
		return fmt.Sprintf("%s: %s; an administrator can grant it by a ClusterRole", r.server, r.text)
	}
	return fmt.Sprintf("%s answers %d: %s", r.server, r.code, r.text)
}

// hadNoEffect: cloudcore refuses a request with these codes before it does anything.
func (r *answerError) hadNoEffect() bool {
	return r.code/100 == 4 || r.code == http.StatusServiceUnavailable
}

func (r *answerError) isFinal() bool { return r.code/100 == 4 }

// sendRequest sends a request to one cloudcore. The error of one with an effect is a *SentError once there was a connection, until there is an answer.
func (c *Client) sendRequest(ctx context.Context, server string, r request, into any) (err error) {
	cfg, err := c.clientConfig(server)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return fmt.Errorf("credentials of the kubeconfig: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("no answer within %s", r.timeout))
	defer cancel()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(traced, r.method, server+r.path, r.reader())
	if err != nil {
		return fmt.Errorf("--server %q: %w", server, err)
	}
	request.ContentLength = int64(len(r.body))
	defer func() {
		if refused := (*answerError)(nil); err != nil && r.method == http.MethodPost && connected.Load() && (!errors.As(err, &refused) || !refused.hadNoEffect()) {
			err = &SentError{err}
		}
	}()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask cloudcore at %s: %w", server, errors.Join(err, context.Cause(ctx)))
	}
	defer func() { _ = response.Body.Close() }() // it is read to its end
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", server, err)
	}
	if response.StatusCode != http.StatusOK {
		return &answerError{server: server, code: response.StatusCode, text: strings.TrimSpace(string(body))}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("understand the answer of %s: %w", server, err)
	}
	return nil
}

// clientConfig is the kubeconfig's user with the address of a cloudcore. Whatever the address, the server must prove cloudcore's own
// identity, so that a token is sent to no other server.
func (c *Client) clientConfig(server string) (*rest.Config, error) {
	if !strings.HasPrefix(server, "https://") {
		return nil, fmt.Errorf("--server %q: want https://host:port", server)
	}
	cfg, err := c.kubeConfig()
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.ServerName, cfg.Insecure = server, inspect.ServerName, false
	switch {
	case c.authority != "":
		cfg.CAFile, cfg.CAData = c.authority, nil
	case c.hubCA != nil:
		cfg.CAFile, cfg.CAData = "", c.hubCA
	}
	return cfg, nil
}

func (c *Client) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// Namespace returns the namespace of the kubeconfig's context.
func (c *Client) Namespace() (string, error) {
	namespace, _, err := c.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return namespace, nil
}

// kubeConfig returns the client configuration of the kubeconfig.
func (c *Client) kubeConfig() (*rest.Config, error) {
	cfg, err := c.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return rest.CopyConfig(cfg), nil
}

// fetchAuthority reads the CA of cloudcore's certificate from the cluster once, as frond init stored it. If the user may not read it, or
// has named another CA, the certificate error stays.
func (c *Client) fetchAuthority(ctx context.Context) bool {
	if c.authority != "" || c.hubCA != nil {
		return false
	}
	cfg, err := c.kubeConfig()
	if err != nil {
		return false
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	bundle, err := client.CoreV1().ConfigMaps(names.Namespace).Get(ctx, install.BundleName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	c.hubCA = []byte(bundle.Data[install.EntryBundle])
	return len(c.hubCA) > 0
}
