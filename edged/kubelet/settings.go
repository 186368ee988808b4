package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	utilcodec "k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"
	"sigs.k8s.io/yaml"
)

const (
	// oomScoreAdj is upstream's own value: the kernel kills the kubelet, here the whole agent, last.
	oomScoreAdj = -999
	// nodeStatusMaxImages keeps the Node small: it is sent over the link with each change. Upstream's default is 50, for a
	// scheduler that prefers nodes with large images; the first ones are enough for it.
	nodeStatusMaxImages = 10
	// inMemory is a placeholder for the path of a kubeconfig, which app.Run requires. The clients exist already, so it is never opened.
	inMemory = "in memory"
)

// capabilities holds the privileges of this process that affect the settings.
type capabilities struct {
	sysResource bool  // CAP_SYS_RESOURCE: lower its own OOM score, open more files than its limit
	openFiles   int64 // the hard limit of open files
}

// buildSettings translates Config into a KubeletConfiguration, before defaults. It is a pure function.
func buildSettings(cfg Config, may capabilities) (map[string]any, error) {
	own := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": cfg.RuntimeEndpoint,
		"podLogsDir":               orDefault(cfg.PodLogsDir, filepath.Join(cfg.Dir, "pod-logs")),
		"volumePluginDir":          filepath.Join(cfg.Dir, "volume-plugins"),
		"healthzPort":              0, // the agent has its own; two nodes on one machine would both use 10248
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false, // only hints for others; needs the iptables program
		"oomScoreAdj":              0,
		"nodeStatusMaxImages":      nodeStatusMaxImages,
		"enableProfilingHandler":   false,
		"tlsMinVersion":            "VersionTLS13",
	}
	if may.sysResource && !cfg.Hollow {
		own["oomScoreAdj"] = oomScoreAdj
	}
	if !may.sysResource {
		setNonZero(own, "maxOpenFiles", may.openFiles)
	}
	setNonZero(own, "address", cfg.Address)
	setNonZero(own, "port", cfg.Port)
	setNonZero(own, "maxPods", cfg.MaxPods)
	setNonZero(own, "staticPodPath", cfg.StaticPodPath)
	setNonZero(own, "cgroupDriver", cfg.CgroupDriver)
	setNonZero(own, "cgroupRoot", cfg.CgroupRoot)
	setNonZero(own, "tlsCertFile", cfg.CertFile)
	setNonZero(own, "tlsPrivateKeyFile", cfg.KeyFile)
	own["serverTLSBootstrap"] = cfg.CertFile == "" // see ServingCert
	setNonZero(own, "clusterDomain", cfg.ClusterDomain)
	if len(cfg.Taints) > 0 {
		own["registerWithTaints"] = cfg.Taints
	}
	if len(cfg.ClusterDNS) > 0 {
		own["clusterDNS"] = cfg.ClusterDNS
	}
	if cfg.ClientCAFile != "" {
		own["authentication"] = map[string]any{"x509": map[string]any{"clientCAFile": cfg.ClientCAFile}}
	}
	if cfg.Hollow {
		maps.Copy(own, map[string]any{
			"cgroupsPerQOS":               false,
			"cgroupRoot":                  "",
			"enforceNodeAllocatable":      []any{},
			"evictionHard":                map[string]any{}, // the disk and memory are shared with other programs
			"imageGCHighThresholdPercent": 100,              // 100: no image collection
		})
	}
	// Upstream's decoder accepts unknown keys; a mistyped key must be reported.
	if err := yaml.UnmarshalStrict(cfg.DropIn, &kubeletconfigv1beta1.KubeletConfiguration{}); err != nil {
		return nil, fmt.Errorf("read drop-in: %w", err)
	}
	var dropIn map[string]any
	if err := yaml.Unmarshal(cfg.DropIn, &dropIn); err != nil {
		return nil, fmt.Errorf("read drop-in: %w", err)
	}
	return mergePatch(own, dropIn), nil
}

func orDefault(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// setNonZero sets a key unless the value is zero; the kubelet then uses its default.
func setNonZero[T comparable](m map[string]any, key string, value T) {
	var zero T
	if value != zero {
		m[key] = value
	}
}

// mergePatch applies a JSON merge patch (RFC 7386): maps are merged, null deletes, all else replaces.
func mergePatch(base, patch map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, value := range patch {
		deeper, isMap := value.(map[string]any)
		below, wasMap := out[key].(map[string]any)
		switch {
		case value == nil:
			delete(out, key)
		case isMap && wasMap:
			out[key] = mergePatch(below, deeper)
		default:
			out[key] = value
		}
	}
	return out
}

// kubeletServer converts settings to upstream's own options, with upstream's defaults.
func kubeletServer(ctx context.Context, cfg Config, may capabilities) (*options.KubeletServer, error) {
	wanted, err := buildSettings(cfg, may)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(wanted)
	if err != nil {
		return nil, fmt.Errorf("write kubelet configuration: %w", err)
	}
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return nil, fmt.Errorf("make kubelet scheme: %w", err)
	}
	configuration, err := utilcodec.DecodeKubeletConfiguration(ctx, codecs, data)
	if err != nil {
		return nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	defaultEviction(configuration, cfg.Hollow)
	flags := options.NewKubeletFlags()
	flags.KubeConfig = inMemory
	flags.HostnameOverride = cfg.Node
	flags.NodeIP = cfg.NodeIP
	flags.RootDirectory = cfg.Dir
	flags.CertDirectory = filepath.Join(cfg.Dir, "pki")
	flags.NodeLabels = maps.Clone(cfg.Labels)
	server := &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *configuration}
	if err := options.ValidateKubeletServer(server); err != nil {
		return nil, fmt.Errorf("kubelet configuration: %w", err)
	}
	return server, nil
}

// defaultEviction does the same as upstream's file loader: thresholds get defaults only if none were given.
func defaultEviction(c *kubeletconfig.KubeletConfiguration, hollow bool) {
	if c.EvictionHard == nil && !hollow {
		c.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	}
}
