package kubelet

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/volume"
)

// projectedPlugin is the name of upstream's plugin of projected volumes.
const projectedPlugin = "kubernetes.io/projected"

// PodCertificateStore keeps the key and certificates of pods' projections over a restart of the kubelet, which itself holds
// them in memory alone. A projection is one source of one volume of a pod. Concurrent calls are allowed.
type PodCertificateStore interface {
	// SavePodCertificate saves the present key and certificates of a projection, in PEM.
	SavePodCertificate(ctx context.Context, namespace, pod, uid, projection string, key, chain []byte) error
	// LastPodCertificate returns the last saved ones, for use while no new certificate is available.
	LastPodCertificate(namespace, uid, projection string) (key, chain []byte, ok bool)
}

// wrapProjectedPlugin puts a certKeepingHost between upstream's projected volumes and their host.
func wrapProjectedPlugin(deps *kubelet.Dependencies, kept PodCertificateStore, log *zap.Logger) error {
	if kept == nil {
		return nil
	}
	for i, plugin := range deps.VolumePlugins {
		if plugin.GetPluginName() == projectedPlugin {
			deps.VolumePlugins[i] = certKeepingPlugin{VolumePlugin: plugin, certs: kept, log: log}
			return nil
		}
	}
	return fmt.Errorf("upstream has no volume plugin %s", projectedPlugin)
}

// certKeepingPlugin is the plugin of projected volumes with a host that keeps certificates.
type certKeepingPlugin struct {
	volume.VolumePlugin
	certs PodCertificateStore
	log   *zap.Logger
}

// Init passes the plugin its host.
func (p certKeepingPlugin) Init(host volume.VolumeHost) error {
	node, ok := host.(volume.KubeletVolumeHost)
	if !ok {
		return fmt.Errorf("host of volumes is a %T, not a kubelet's", host)
	}
	return p.VolumePlugin.Init(certKeepingHost{VolumeHost: host, KubeletVolumeHost: node, certs: p.certs, log: p.log})
}

// certKeepingHost is the kubelet's volume host with kept certificates, for projected volumes.
type certKeepingHost struct {
	volume.VolumeHost
	volume.KubeletVolumeHost
	certs PodCertificateStore
	log   *zap.Logger
}

// GetPodCertificateCredentialBundle returns the kubelet's certificate or, if the kubelet has none and can get none, the one
// from before its restart.
func (h certKeepingHost) GetPodCertificateCredentialBundle(ctx context.Context, namespace, podName, podUID, volumeName string, sourceIndex int) (key, chain []byte, err error) {
	projection := fmt.Sprintf("%s/%d", volumeName, sourceIndex)
	key, chain, err = h.KubeletVolumeHost.GetPodCertificateCredentialBundle(ctx, namespace, podName, podUID, volumeName, sourceIndex)
	if err != nil {
		if lastKey, lastChain, ok := h.certs.LastPodCertificate(namespace, podUID, projection); ok {
			return lastKey, lastChain, nil
		}
		return nil, nil, err
	}
	if err := h.certs.SavePodCertificate(ctx, namespace, podName, podUID, projection, key, chain); err != nil {
		// The pod still gets its certificate; after a reboot without a link it will be missing.
		h.log.Warn("pod certificate not kept", zap.String("pod", namespace+"/"+podName), zap.Error(err))
	}
	return key, chain, nil
}
