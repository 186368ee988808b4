package kube

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/discovery"

	"github.com/frond-edge/frond/api/kubeversion"
)

// versionInterval is how often the version of the Kubernetes API is read: an upgrade takes minutes.
const versionInterval = 10 * time.Minute

// VersionReader holds the version of the Kubernetes API.
type VersionReader struct {
	kube     discovery.ServerVersionInterface
	interval time.Duration
	version  atomic.Pointer[string]
	log      *zap.Logger
}

// NewVersionReader creates a reader that has read nothing yet.
func NewVersionReader(kube discovery.ServerVersionInterface, log *zap.Logger) *VersionReader {
	return &VersionReader{kube: kube, interval: versionInterval, log: log}
}

// Version returns the version that was last read, "" if none was.
func (v *VersionReader) Version() string {
	if found := v.version.Load(); found != nil {
		return *found
	}
	return ""
}

// Start reads the version periodically until ctx ends.
func (v *VersionReader) Start(ctx context.Context) error {
	tick := time.NewTicker(v.interval)
	defer tick.Stop()
	for {
		v.readVersion()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (v *VersionReader) readVersion() {
	info, err := v.kube.ServerVersion() // bounded by the client's timeout
	if err != nil {
		v.log.Warn("version of the Kubernetes API not read; asking again later", zap.Duration("in", v.interval), zap.Error(err))
		return
	}
	if v.Version() == info.GitVersion {
		return
	}
	v.version.Store(&info.GitVersion)
	if verdict := kubeversion.Evaluate(info.GitVersion); !verdict.Tested {
		v.log.Warn("version of the Kubernetes API is not one that Frond is tested with", zap.String("version", info.GitVersion), zap.String("verdict", verdict.Message))
	}
}
