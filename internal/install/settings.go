package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/hubconf"
	"github.com/frond-edge/frond/internal/install/sizing"
)

// SettingsName is the ConfigMap with the settings of the installation. It holds no secrets.
const SettingsName = "frond"

// Settings are the administrator's settings, and the values that follow from them.
type Settings struct {
	// HubURLs are the addresses of the hub's leaf listeners, as gateways reach them.
	HubURLs []string `json:"hubURLs,omitempty"`
	// Cells is the number of accounts that gateways are spread over; it never changes.
	Cells int `json:"cells"`
	// Partitions is the number of streams that hold the desired state of gateways; see docs/operations/partitions.md.
	Partitions int `json:"partitions"`
	// HubServers is the number of the hub's servers.
	HubServers int `json:"hubServers"`
	// Nodes is the number of gateways that the installation is planned for; 0: not told.
	Nodes int `json:"nodes,omitempty"`
	// HubHosts are further addresses and names in the certificates of the hub's servers.
	HubHosts []string `json:"hubHosts,omitempty"`
	// Schedulers are the users, beside kube-scheduler, that may bind pods of protected namespaces to nodes.
	Schedulers []string `json:"schedulers,omitempty"`
	// TaintGateways makes gateways of the printed join command register with the taint of the edge role; nil means no.
	TaintGateways *bool `json:"taintGateways,omitempty"`
	// CAHash identifies the CA that signs the hub's certificates.
	CAHash string `json:"caHash,omitempty"`
}

// The defaults of Settings.
const (
	DefaultCells      = hubconf.DefaultCells
	DefaultHubServers = 3
	// maxNodesPerCell is where a new link begins to cost the hub much (hubconf.DefaultCells).
	maxNodesPerCell = 500
)

// The keys of the ConfigMap.
const (
	keyHubURLs       = "hubURLs"
	keyHubHosts      = "hubHosts"
	keyCells         = "cells"
	keyPartitions    = "partitions"
	keyHubServers    = "hubServers"
	keyNodes         = "nodes"
	keySchedulers    = "schedulers"
	keyTaintGateways = "taintGateways"
	keyCAHash        = "caHash"
)

// ErrNotInstalled reports that frond init was never run in the cluster.
var ErrNotInstalled = errors.New("Frond is not installed in this cluster: run frond init") //nolint:staticcheck // a name

// ReadSettings reads the settings from the cluster.
func ReadSettings(ctx context.Context, client kubernetes.Interface) (Settings, error) {
	o, err := client.CoreV1().ConfigMaps(names.Namespace).Get(ctx, SettingsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Settings{}, ErrNotInstalled
	}
	if err != nil {
		return Settings{}, fmt.Errorf("read what was installed: %w", err)
	}
	return parseSettings(o.Data)
}

func parseSettings(data map[string]string) (s Settings, err error) {
	var faults [5]error
	s = Settings{Partitions: 1, HubURLs: splitWords(data[keyHubURLs]), HubHosts: splitWords(data[keyHubHosts]), Schedulers: splitWords(data[keySchedulers]), CAHash: data[keyCAHash]}
	s.Cells, faults[0] = strconv.Atoi(data[keyCells])
	s.HubServers, faults[1] = strconv.Atoi(data[keyHubServers])
	if text, set := data[keyTaintGateways]; set {
		var taint bool
		taint, faults[2] = strconv.ParseBool(text)
		s.TaintGateways = &taint
	}
	if text, set := data[keyNodes]; set {
		s.Nodes, faults[3] = strconv.Atoi(text)
	}
	if text, set := data[keyPartitions]; set { // not by earlier versions, which had one
		s.Partitions, faults[4] = strconv.Atoi(text)
	}
	if err := errors.Join(faults[:]...); err != nil {
		return s, fmt.Errorf("understand ConfigMap %s/%s: %w", names.Namespace, SettingsName, err)
	}
	return s, nil
}

func splitWords(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
}

func (s Settings) toConfigMap() *corev1.ConfigMap {
	data := map[string]string{
		keyHubURLs: strings.Join(s.HubURLs, ","), keyHubHosts: strings.Join(s.HubHosts, ","),
		keyCells: strconv.Itoa(s.Cells), keyPartitions: strconv.Itoa(s.Partitions), keyHubServers: strconv.Itoa(s.HubServers), keyCAHash: s.CAHash,
	}
	if s.Nodes != 0 {
		data[keyNodes] = strconv.Itoa(s.Nodes)
	}
	if len(s.Schedulers) > 0 {
		data[keySchedulers] = strings.Join(s.Schedulers, ",")
	}
	if s.TaintGateways != nil {
		data[keyTaintGateways] = strconv.FormatBool(*s.TaintGateways)
	}
	return configMap(SettingsName, data)
}

// GatewayTaint is the taint of gateways where TaintGateways is set, in the format of frond join --taint.
const GatewayTaint = names.LabelEdge + ":NoSchedule"

// JoinCommand returns the command to run on the gateway.
func (s Settings) JoinCommand(token, node string) (string, error) {
	if len(s.HubURLs) == 0 {
		return "", errors.New("the hub's address for gateways is not known: run frond init --hub-url tls://HOST:PORT")
	}
	command := fmt.Sprintf("frond join %s --token %s --ca-hash %s", strings.TrimPrefix(s.HubURLs[0], "tls://"), token, s.CAHash)
	if s.TaintGateways != nil && *s.TaintGateways {
		command += " --taint " + GatewayTaint
	}
	if node != "" {
		command += " --node-name " + node
	}
	return command, nil
}

// mergeAsked merges the requested settings over the earlier ones, and completes them.
func (s Settings) mergeAsked(asked Settings) (Settings, error) {
	if asked.Cells != 0 && s.Cells != 0 && asked.Cells != s.Cells {
		return s, fmt.Errorf("--cells %d: this cluster has %d, and each gateway's account follows from that; it stays", asked.Cells, s.Cells)
	}
	if asked.Partitions != 0 && s.Partitions != 0 && asked.Partitions != s.Partitions {
		return s, fmt.Errorf("--partitions %d: this cluster has %d, and the streams must be built anew for another number: see docs/operations/partitions.md", asked.Partitions, s.Partitions)
	}
	if asked.HubServers != 0 && asked.HubServers < s.HubServers {
		return s, fmt.Errorf("--hub-servers %d: the hub has %d, and its streams have copies on them; it may grow only", asked.HubServers, s.HubServers)
	}
	cells, servers := DefaultCells, DefaultHubServers
	if asked.Nodes != 0 {
		plan, err := sizing.ForNodes(asked.Nodes, 0)
		if err != nil {
			return s, fmt.Errorf("--nodes: %w", err)
		}
		s.Nodes, cells, servers = asked.Nodes, plan.Cells, plan.HubServers
	}
	for _, over := range []struct{ at, asked, otherwise *int }{{&s.Cells, &asked.Cells, &cells}, {&s.HubServers, &asked.HubServers, &servers}} {
		switch {
		case *over.asked != 0:
			*over.at = *over.asked
		case *over.at == 0:
			*over.at = *over.otherwise
		}
	}
	if s.Partitions == 0 {
		s.Partitions = cmp.Or(asked.Partitions, min(sizing.PartitionsFor(s.Nodes), s.Cells))
	}
	if len(asked.HubURLs) > 0 {
		s.HubURLs = asked.HubURLs
	}
	if len(asked.HubHosts) > 0 {
		s.HubHosts = asked.HubHosts
	}
	if len(asked.Schedulers) > 0 {
		s.Schedulers = asked.Schedulers
	}
	if asked.TaintGateways != nil {
		s.TaintGateways = asked.TaintGateways
	}
	return s, s.validate()
}

func (s Settings) validate() error {
	var faults []error
	if s.Cells < 1 || s.Cells > sizing.MaxCells {
		faults = append(faults, fmt.Errorf("--cells %d: choose 1 to %d", s.Cells, sizing.MaxCells))
	}
	if s.Partitions < 1 || s.Partitions > min(s.Cells, hubconf.MaxPartitions) {
		faults = append(faults, fmt.Errorf("--partitions %d: choose 1 to %d, and no more than --cells", s.Partitions, hubconf.MaxPartitions))
	}
	if !slices.Contains([]int{1, 3, 5}, s.HubServers) {
		faults = append(faults, fmt.Errorf("--hub-servers %d: choose 1, 3 or 5", s.HubServers))
	}
	for _, address := range s.HubURLs {
		if u, err := url.Parse(address); err != nil || u.Hostname() == "" || u.Scheme != "wss" && (u.Scheme != "tls" || u.Port() == "") {
			faults = append(faults, fmt.Errorf("--hub-url %q: write tls://HOST:PORT, or wss://HOST for WebSocket", address))
		}
	}
	return errors.Join(faults...)
}

// plan returns what the planned number of gateways needs, nil if none is planned.
func (s Settings) plan() (*sizing.Plan, error) {
	if s.Nodes == 0 {
		return nil, nil //nolint:nilnil // no plan is not a fault
	}
	plan, err := sizing.ForNodes(s.Nodes, s.HubServers)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %s: %w", names.Namespace, SettingsName, keyNodes, err)
	}
	plan.Cells, plan.Partitions = s.Cells, s.Partitions
	return &plan, nil
}

// Folders lists the Secrets of an installation, the CA's first.
func (s Settings) Folders() []string {
	folders := []string{FolderCA, FolderCloudcore, FolderAdmin}
	for i := range s.HubServers {
		folders = append(folders, FolderHub(i))
	}
	return folders
}

// hubService is the name of the StatefulSet of the hub's servers and of its Service.
const hubService = "frond-hub"

// Servers returns the servers of the hub in the cluster: pods of a StatefulSet with a Service of the same name. Gateways and clients
// outside the cluster know them by the hosts of the URLs.
func (s Settings) Servers() []Server {
	common := append([]string{"localhost", "127.0.0.1", "::1"}, s.HubHosts...) // for probes and port-forward
	for _, address := range s.HubURLs {
		if u, err := url.Parse(address); err == nil {
			common = append(common, u.Hostname())
		}
	}
	var servers []Server
	for i := range s.HubServers {
		name := hubService + "-" + strconv.Itoa(i)
		own := slices.Clone(common)
		for _, host := range []string{hubService, name + "." + hubService} {
			own = append(own, host, host+"."+names.Namespace, host+"."+names.Namespace+".svc", host+"."+names.Namespace+".svc.cluster.local")
		}
		servers = append(servers, Server{Name: name, Hosts: own})
	}
	return servers
}
