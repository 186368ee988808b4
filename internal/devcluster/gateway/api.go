package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// API reads gateways and cloudcores over their own APIs.
type API struct{ f *folder.Folder }

// NewAPI returns the APIs of a cluster's gateways and cloudcores.
func NewAPI(f *folder.Folder) *API { return &API{f: f} }

// StoreContents lists the objects in a gateway's store, as edgecore serves it on its unix socket.
type StoreContents struct {
	Cursor wire.Cursor `json:"cursor"`
	// Revision is the store's own version: a resourceVersion of the gateway's API, less 10^18.
	Revision uint64         `json:"revision"`
	Objects  []StoredObject `json:"objects"`
}

// StoredObject is one object without its content.
type StoredObject struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Version   string `json:"version"`
	Sequence  uint64 `json:"sequence"`
	Revision  uint64 `json:"revision"`
	Bytes     int    `json:"bytes"`
}

// Key returns the object's key.
func (o StoredObject) Key() wire.Key {
	return wire.Key{Group: o.Group, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}
}

// Store lists the objects of a gateway. The gateway itself answers, so it also works while the link is cut.
func (a *API) Store(ctx context.Context, edge string) (StoreContents, error) {
	var s StoreContents
	if err := a.f.CheckGateway(edge); err != nil {
		return s, err
	}
	return s, request.Socket(ctx, a.f.Layout.Gateway(edge).APISocket(), http.MethodGet, "/frond/store", &s)
}

// ErrNotInStore reports that a gateway's store does not hold an object.
var ErrNotInStore = errors.New("the gateway does not hold it")

// StoreGet returns one object as the gateway's Kubernetes API serves it, or ErrNotInStore. It checks the store first, because the
// API forwards requests for objects it does not hold to the cloud.
func (a *API) StoreGet(ctx context.Context, edge string, key wire.Key) (json.RawMessage, error) {
	held, err := a.Store(ctx, edge)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(held.Objects, func(o StoredObject) bool { return o.Key() == key }) {
		return nil, fmt.Errorf("%s: %s: %w", edge, key.Human(), ErrNotInStore)
	}
	get := func(path string, into any) error {
		return request.Socket(ctx, a.f.Layout.Gateway(edge).APISocket(), http.MethodGet, path, into)
	}
	version, err := servedVersion(key, get)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", edge, err)
	}
	var object json.RawMessage
	return object, get(apiPath(key, version), &object)
}

// EdgeAPI returns the client configuration for a gateway's local API on its socket, with the rights of the socket's owner.
func (a *API) EdgeAPI(edge string) *rest.Config {
	return &rest.Config{Host: "http://localhost", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.f.Layout.Gateway(edge).APISocket())
	}}
}

// servedVersion returns the version in which an API serves an object's resource, by its discovery: of several the preferred one.
func servedVersion(k wire.Key, get func(path string, into any) error) (string, error) {
	if k.Group == "" {
		return "v1", nil
	}
	groupPath := "/apis/" + url.PathEscape(k.Group)
	var group metav1.APIGroup
	if err := get(groupPath, &group); err != nil {
		return "", fmt.Errorf("find the versions of %s: %w", k.Group, err)
	}
	for _, v := range append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...) {
		var served metav1.APIResourceList
		if err := get(groupPath+"/"+url.PathEscape(v.Version), &served); err != nil {
			return "", fmt.Errorf("find the resources of %s: %w", v.GroupVersion, err)
		}
		if slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == k.Resource }) {
			return v.Version, nil
		}
	}
	return "", fmt.Errorf("no version of %s serves %s", k.Group, k.Resource)
}

// apiPath is the path of an object in a Kubernetes API, in a version of its group.
func apiPath(k wire.Key, version string) string {
	path := "/api/" + version
	if k.Group != "" {
		path = "/apis/" + url.PathEscape(k.Group) + "/" + url.PathEscape(version)
	}
	if k.Namespace != "" {
		path += "/namespaces/" + url.PathEscape(k.Namespace)
	}
	return path + "/" + url.PathEscape(k.Resource) + "/" + url.PathEscape(k.Name)
}

// PodCIDR reads the podCIDR of a gateway's Node from the gateway, "" if it has none or holds no Node.
func (a *API) PodCIDR(ctx context.Context, edge string) (string, error) {
	raw, err := a.StoreGet(ctx, edge, wire.Key{Resource: "nodes", Name: edge})
	if errors.Is(err, ErrNotInStore) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("ask %s for its Node: %w", edge, err)
	}
	var node struct {
		Spec struct {
			PodCIDR string `json:"podCIDR"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &node); err != nil {
		return "", fmt.Errorf("read the Node of %s: %w", edge, err)
	}
	return node.Spec.PodCIDR, nil
}

// FromEdge gets a URL, whose host is an IP address, from inside the gateway's network namespace where it has one. It returns
// the body.
func (a *API) FromEdge(ctx context.Context, edge, url string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return a.DialFrom(ctx, edge, address)
	}}
	var body json.RawMessage
	err := request.Send(ctx, transport, http.MethodGet, url, &body)
	return string(body), err
}

// DialFrom dials an IP address and port from inside the gateway's network namespace where it has one.
func (a *API) DialFrom(ctx context.Context, edge, address string) (net.Conn, error) {
	if err := a.f.CheckGateway(edge); err != nil {
		return nil, err
	}
	namespace := ""
	if a.f.State.Spec.Runtime == folder.Containerd {
		namespace = a.f.Network().Namespace(edge)
	}
	return wan.Dial(ctx, namespace, address)
}

// MQTTAddress returns where a gateway's MQTT broker listens, for programs on the gateway.
func (a *API) MQTTAddress(edge string) string {
	if port := a.f.State.Ports[edge+"-mqtt"]; port != 0 {
		return folder.Loopback(port)
	}
	return config.MQTTAddress
}

// MapperDir returns the folder in which a gateway's mappers find its socket and make their own.
func (a *API) MapperDir(edge string) string { return a.f.Layout.Gateway(edge).MapperDir() }

// EdgeMetrics returns /metrics of a gateway's edgecore.
func (a *API) EdgeMetrics(ctx context.Context, edge string) (string, error) {
	return a.FromEdge(ctx, edge, "http://"+folder.Loopback(a.f.State.Ports[edge])+"/metrics")
}

// CloudMetrics returns /metrics of a cloudcore.
func (a *API) CloudMetrics(ctx context.Context, name string) (string, error) {
	var body json.RawMessage
	err := request.Component(ctx, a.f, request.Plain, name, "/metrics", &body)
	return string(body), err
}

// Metric returns the sum of one metric of a cloudcore or gateway over the label sets that contain all the given
// name=value pairs. For a histogram it returns the number of observations. A missing metric is 0.
func (a *API) Metric(ctx context.Context, part, name string, labels ...string) (float64, error) {
	read := a.CloudMetrics
	if strings.HasPrefix(part, "edge-") {
		read = a.EdgeMetrics
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

// Command returns a command that runs as on a gateway: in its network and mount namespaces where it has some, with the
// cluster's programs first in PATH, and with frond edge connected to its edgecore.
func (a *API) Command(ctx context.Context, edge string, args ...string) (*exec.Cmd, error) {
	if err := a.f.CheckGateway(edge); err != nil {
		return nil, err
	}
	if a.f.State.Spec.Runtime == folder.Containerd {
		holder := a.f.State.Processes[folder.HolderName(edge)]
		if !holder.Alive() {
			return nil, fmt.Errorf("the holder of the namespaces of %s is gone: run frond dev up", edge)
		}
		args = append([]string{"nsenter", "--target=" + strconv.Itoa(holder.PID), "--net", "--mount", "--wdns=/", "--"}, args...)
	}
	// env looks the program up in the new PATH; exec.Command would use this process's PATH.
	env := []string{"PATH=" + a.f.Layout.Path("bin") + ":" + os.Getenv("PATH"), "FROND_SOCKET=" + a.f.Layout.Gateway(edge).APISocket()}
	return exec.CommandContext(ctx, "env", append(env, args...)...), nil
}
