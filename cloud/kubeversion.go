package cloud

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/discovery"

	"github.com/frond-edge/frond/api/kubeversion"
)

// versionEvery is how often the version of the Kubernetes API is read: an upgrade takes minutes.
const versionEvery = 10 * time.Minute

// A kubeVersion knows the version of the Kubernetes API.
type kubeVersion struct {
	kube  discovery.ServerVersionInterface
	every time.Duration
	found atomic.Pointer[string]
	log   *zap.Logger
}

func newKubeVersion(kube discovery.ServerVersionInterface, log *zap.Logger) *kubeVersion {
	return &kubeVersion{kube: kube, every: versionEvery, log: log}
}

// Get returns the version that was last read, "" if none was.
func (v *kubeVersion) Get() string {
	if found := v.found.Load(); found != nil {
		return *found
	}
	return ""
}

// Start reads the version now and then until ctx ends.
func (v *kubeVersion) Start(ctx context.Context) error {
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	for {
		v.read()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (v *kubeVersion) read() {
	info, err := v.kube.ServerVersion() // bounded by the client's timeout
	if err != nil {
		v.log.Warn("version of the Kubernetes API not read; asking again later", zap.Duration("in", v.every), zap.Error(err))
		return
	}
	if v.Get() == info.GitVersion {
		return
	}
	v.found.Store(&info.GitVersion)
	if verdict := kubeversion.Evaluate(info.GitVersion); !verdict.Tested {
		v.log.Warn("version of the Kubernetes API is not one that Frond is tested with", zap.String("version", info.GitVersion), zap.String("verdict", verdict.Message))
	}
}
