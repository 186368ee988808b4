package syncstate

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
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

// cloudcore is a command's client of a cloudcore, with the credentials of the kubeconfig.
type cloudcore struct {
	server, kubeconfig, context, authority string
	// hubCA are the hub's CAs, once they were fetched.
	hubCA []byte
}

func (c *cloudcore) addFlags(cmd *cobra.Command) {
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

// getJSON gets a path from the first cloudcore that answers; all answer alike.
func (c *cloudcore) getJSON(ctx context.Context, path string, into any) error {
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
		err := c.getFrom(ctx, server, path, into)
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) && c.fetchAuthority(ctx) {
			err = c.getFrom(ctx, server, path, into)
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

func (r *answerError) isFinal() bool { return r.code/100 == 4 }

func (c *cloudcore) getFrom(ctx context.Context, server, path string, into any) error {
	cfg, err := c.clientConfig(server)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return fmt.Errorf("credentials of the kubeconfig: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, serverTimeout, fmt.Errorf("no answer within %s", serverTimeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
	if err != nil {
		return fmt.Errorf("--server %q: %w", server, err)
	}
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
func (c *cloudcore) clientConfig(server string) (*rest.Config, error) {
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

// kubeConfig returns the client configuration of the kubeconfig.
func (c *cloudcore) kubeConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return rest.CopyConfig(cfg), nil
}

// fetchAuthority reads the CA of cloudcore's certificate from the cluster once, as frond init stored it. If the user may not read it, or
// has named another CA, the certificate error stays.
func (c *cloudcore) fetchAuthority(ctx context.Context) bool {
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
