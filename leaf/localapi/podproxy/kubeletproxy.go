// Package podproxy serves logs of containers and commands in them from the node's own kubelet.
package podproxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// localUser is the user name that the kubelet sees for logs and commands requested on the unix socket.
const localUser = "frond:local"

// Endpoint is the endpoint of the node's own kubelet, for logs and commands requested on the unix socket.
type Endpoint struct {
	// Address is the host:port of its API; "" refuses logs and commands.
	Address string
	// Certificate returns the certificate that the kubelet must present for one of its names. Its dates are ignored,
	// because a gateway that is offline for months must still be serviceable. It is called for each connection.
	Certificate func() (*x509.Certificate, error)
}

// Proxy forwards requests from the unix socket to the kubelet's port, without the cloud.
//
// A kubelet asks its API for the bearer of a token and for that user's rights, and its API is this server. So the token is
// created here and held only in this process's memory. Both reviews of it are answered here; all others are answered as usual.
type Proxy struct {
	endpoint Endpoint
	store    *store.Store
	token    string
	uid      string // UID of the user; only the kubelet receives it, so no other client can review this user
	proxy    *httputil.ReverseProxy
}

// New creates a Proxy to a kubelet for the pods in the store. It connects to nothing.
func New(port Endpoint, st *store.Store, log *zap.Logger) *Proxy {
	k := &Proxy{endpoint: port, store: st, token: "frond-local-" + rand.Text(), uid: rand.Text()}
	transport := &http.Transport{
		DisableCompression: true, DisableKeepAlives: true, // rare, manual requests: no connection is kept open
		DialTLSContext: k.dial,
	}
	k.proxy = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // a followed log is sent line by line
		ErrorLog: zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Header.Del("Cookie")
			r.Out.Header.Set("Authorization", "Bearer "+k.token)
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			respond.Error(w, req, apierrors.NewServiceUnavailable(fmt.Sprintf("the kubelet of this gateway does not answer: %v", err)))
		},
	}
	return k
}

// dial connects only to the kubelet: one certificate is trusted, by one of its own names, at its time of issue.
func (k *Proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	cert, err := k.endpoint.Certificate()
	if err != nil {
		return nil, fmt.Errorf("kubelet's certificate: %w", err)
	}
	name, err := certificateName(cert)
	if err != nil {
		return nil, fmt.Errorf("kubelet's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	dialer := tls.Dialer{Config: &tls.Config{
		RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13, Time: func() time.Time { return cert.NotBefore },
	}}
	conn, err := dialer.DialContext(ctx, network, address)
	if _, unknown := errors.AsType[*tls.CertificateVerificationError](err); unknown {
		return nil, fmt.Errorf("the server at the kubelet's port is not the kubelet of this gateway: %w", err)
	}
	return conn, err
}

// certificateName returns a name that a certificate is for.
func certificateName(cert *x509.Certificate) (string, error) {
	switch {
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0], nil
	case len(cert.IPAddresses) > 0:
		return cert.IPAddresses[0].String(), nil
	}
	return "", errors.New("it is for no name")
}

// Serves reports whether a request is for the kubelet: a log or a command, requested on the unix socket or in memory.
func (k *Proxy) Serves(info *request.RequestInfo, req *http.Request) bool {
	if info.APIGroup != "" || info.Resource != "pods" || req.TLS != nil || k.endpoint.Address == "" {
		return false
	}
	switch info.Subresource {
	case "log":
		return info.Verb == "get"
	case "exec", "attach":
		return true
	default:
		return false
	}
}

// Serve serves the log of a container, and commands in it, from the node's own kubelet.
func (k *Proxy) Serve(w http.ResponseWriter, req *http.Request) {
	info, _ := request.RequestInfoFrom(req.Context())
	pod, err := LoadPod(k.store, info.Namespace, info.Name)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	query := req.URL.Query()
	container, err := chooseContainer(pod, query.Get("container"))
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	query.Del("container")
	verb := info.Subresource
	if verb == "log" {
		verb = "containerLogs"
	} else {
		renameStreams(query)
	}
	out := req.Clone(req.Context())
	out.URL = &url.URL{
		Scheme: "https", Host: k.endpoint.Address, RawQuery: query.Encode(),
		Path: "/" + verb + "/" + pod.Namespace + "/" + pod.Name + "/" + container,
	}
	out.Host = k.endpoint.Address
	k.proxy.ServeHTTP(w, out)
}

// LoadPod returns a pod that this node runs.
func LoadPod(st *store.Store, namespace, name string) (*corev1.Pod, error) {
	entry, err := st.Get(wire.Key{Resource: "pods", Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	pod := &corev1.Pod{}
	if err == nil {
		err = json.Unmarshal(entry.Object, pod)
	}
	return pod, err
}

// chooseContainer returns the requested container: the named one, or the only one.
func chooseContainer(pod *corev1.Pod, name string) (string, error) {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	for _, n := range names {
		if n == name || name == "" && len(names) == 1 {
			return n, nil
		}
	}
	if name == "" {
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", pod.Name, names))
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
}

// renameStreams renames the API's query parameters of a command's streams to the kubelet's, as an apiserver does.
func renameStreams(query url.Values) {
	for api, kubelet := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
		wanted := query.Get(api)
		query.Del(api)
		if strings.EqualFold(wanted, "true") || wanted == "1" {
			query.Set(kubelet, "1")
		}
	}
}

// WithReview answers the kubelet's reviews of Proxy's user, and passes all others on. readBody returns the body
// of a request, or has answered.
func (k *Proxy) WithReview(readBody func(http.ResponseWriter, *http.Request) ([]byte, bool), next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, ok := readBody(w, req)
		if !ok {
			return
		}
		if answer, gv := k.answerReview(body); answer != nil {
			responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, gv, w, req, http.StatusCreated, answer, false)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		next(w, req)
	}
}

// answerReview returns nil for a review of any other user.
func (k *Proxy) answerReview(body []byte) (runtime.Object, schema.GroupVersion) {
	if r, ok := respond.DecodeAs[*authenticationv1.TokenReview](body); ok {
		if subtle.ConstantTimeCompare([]byte(r.Spec.Token), []byte(k.token)) != 1 {
			return nil, schema.GroupVersion{}
		}
		r.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1.UserInfo{Username: localUser, UID: k.uid},
		}
		return r, authenticationv1.SchemeGroupVersion
	}
	r, ok := respond.DecodeAs[*authorizationv1.SubjectAccessReview](body)
	if !ok || r.Spec.User != localUser || subtle.ConstantTimeCompare([]byte(r.Spec.UID), []byte(k.uid)) != 1 {
		return nil, schema.GroupVersion{}
	}
	r.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "the caller can open the gateway's unix socket"}
	return r, authorizationv1.SchemeGroupVersion
}

// IsReview reports whether a request may be one of the kubelet's reviews of Proxy's user.
func IsReview(info *request.RequestInfo) bool {
	return info.Verb == "create" && info.Subresource == "" &&
		(info.APIGroup == authenticationv1.GroupName && info.Resource == "tokenreviews" ||
			info.APIGroup == authorizationv1.GroupName && info.Resource == "subjectaccessreviews")
}
