package install

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
)

const (
	// CloudcoreName is the ConfigMap with cloudcore's configuration, and the key of the file in it.
	CloudcoreName   = "frond-cloudcore"
	cloudcoreConfig = "cloudcore.yaml"
	// cloudcoreFolder is the mount point of cloudcore's Secret in its pod.
	cloudcoreFolder = "/etc/frond"
	// clusterCA is the file with the CAs of its cluster in each pod.
	clusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
	// inspectAddress is next to the ports of cloudcore's other listeners.
	inspectAddress = "127.0.0.1:10284"
	// portCloudcore is cloudcore's own default, and that of deploy/cloud.
	portCloudcore = 10280
)

// Cloudcore returns the part of cloudcore's configuration that depends only on the folder of its Secret, which has a file for each
// entry. clusterCA is the file with the CAs of Kubernetes.
func (s Settings) Cloudcore(folder, clusterCA string) config.CloudCore {
	partitions := s.Partitions
	if partitions == 1 {
		partitions = 0 // which means the same, also to a version that does not know the field
	}
	in := func(entry string) string { return path.Join(folder, entry) }
	return config.CloudCore{
		Hub: config.Hub{NkeyFile: in(EntryHubSeed), CAFile: in(EntryBundle), CertFile: in(EntryCert), KeyFile: in(EntryKey)},
		Identity: config.Identity{
			IssuerSeedFile: in(EntryIssuerSeed), AuthNkeyFile: in(EntryAuthSeed), SysNkeyFile: in(EntrySysSeed),
			Cells: s.Cells, Partitions: partitions, ClusterCAFile: clusterCA,
		},
		Replicas: s.HubServers,
		Inspect:  config.Inspect{CertFile: in(EntryCert), KeyFile: in(EntryKey), ClientCAFile: clusterCA},
	}
}

// cloudcoreDefaults returns the part of cloudcore's configuration that follows from the installation.
func (s Settings) cloudcoreDefaults() config.CloudCore {
	c := s.Cloudcore(cloudcoreFolder, clusterCA)
	c.Identity.HubURLs = s.HubURLs
	c.Listen = anyAddress(portCloudcore) // for probes and metrics scrapers
	for _, server := range s.Servers() {
		c.Hub.URLs = append(c.Hub.URLs, "nats://"+serviceHost(server.Name)+":"+strconv.Itoa(portClient))
	}
	c.Inspect.Address = inspectAddress // loopback is enough for kubectl port-forward
	return c
}

// mergeConfiguration merges the values that follow from the installation into cloudcore's configuration, and keeps the administrator's
// fields. A file that already has these values is returned unchanged.
func (s Settings) mergeConfiguration(old string) (string, error) {
	data, err := json.Marshal(s.cloudcoreDefaults())
	if err != nil {
		return "", fmt.Errorf("encode cloudcore's configuration: %w", err)
	}
	var ours, present, merged map[string]any
	if err := json.Unmarshal(data, &ours); err != nil {
		return "", fmt.Errorf("encode cloudcore's configuration: %w", err)
	}
	for _, into := range []*map[string]any{&present, &merged} {
		if err := yaml.Unmarshal([]byte(old), into); err != nil {
			return "", fmt.Errorf("understand %s in ConfigMap %s: %w", cloudcoreConfig, CloudcoreName, err)
		}
	}
	if merged == nil {
		merged = map[string]any{}
	}
	mergeFields(merged, ours)
	if identity, isMap := merged["identity"].(map[string]any); isMap && s.Partitions == 1 {
		delete(identity, "partitions")
	}
	if reflect.DeepEqual(present, merged) {
		return old, nil
	}
	text, err := yaml.Marshal(merged)
	return string(text), err
}

// mergeFields overwrites the fields of into with those of from.
func mergeFields(into, from map[string]any) {
	for field, value := range from {
		below, isMap := value.(map[string]any)
		there, wasMap := into[field].(map[string]any)
		if isMap && wasMap {
			mergeFields(there, below)
			continue
		}
		into[field] = value
	}
}

// RenewWindow returns how long after its expiry cloudcore allows a key to be renewed, from the ConfigMap frond-cloudcore. Without a
// ConfigMap of frond init it is the default.
func RenewWindow(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	o, err := client.CoreV1().ConfigMaps(names.Namespace).Get(ctx, CloudcoreName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return config.DefaultRenewWindow, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read cloudcore's configuration: %w", err)
	}
	c, err := config.ParseCloudCore([]byte(o.Data[cloudcoreConfig]), CloudcoreName)
	if err != nil {
		return 0, fmt.Errorf("understand %s in ConfigMap %s: %w", cloudcoreConfig, CloudcoreName, err)
	}
	return time.Duration(*c.Identity.RenewWindow), nil
}
