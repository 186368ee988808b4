package kubelet

import (
	"context"
	"errors"
	"maps"
	"testing"

	"go.uber.org/zap/zaptest"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/projected"
)

// certificateHost is a kubelet with or without a certificate.
type certificateHost struct {
	volume.VolumeHost
	volume.KubeletVolumeHost
	key string
}

func (h certificateHost) GetPodCertificateCredentialBundle(context.Context, string, string, string, string, int) (key, chain []byte, err error) {
	if h.key == "" {
		return nil, nil, errors.New("not issued yet")
	}
	return []byte(h.key), []byte("chain"), nil
}

// memoryCertificates keeps certificates in memory.
type memoryCertificates map[string]string

func (k memoryCertificates) SavePodCertificate(_ context.Context, namespace, pod, uid, projection string, key, chain []byte) error {
	if pod == "full" {
		return errors.New("disk full")
	}
	k[namespace+"/"+uid+"/"+projection] = string(key) + " " + string(chain)
	return nil
}

func (k memoryCertificates) LastPodCertificate(namespace, uid, projection string) (key, chain []byte, ok bool) {
	kept, ok := k[namespace+"/"+uid+"/"+projection]
	return []byte(kept), nil, ok
}

func TestProjectedVolumes_KeepCertificates(t *testing.T) {
	kept, log := memoryCertificates{}, zaptest.NewLogger(t)
	ask := func(key, pod string) string {
		host := certKeepingHost{KubeletVolumeHost: certificateHost{key: key}, certs: kept, log: log}
		got, _, err := host.GetPodCertificateCredentialBundle(t.Context(), "ns", pod, "uid-"+pod, "certs", 2)
		if err != nil {
			return err.Error()
		}
		return string(got)
	}
	for _, step := range []struct{ has, pod, want string }{
		{"", "web", "not issued yet"},
		{"one", "web", "one"},
		{"", "web", "one chain"},
		{"two", "web", "two"},
		{"", "another", "not issued yet"},
		{"three", "full", "three"},
	} {
		if got := ask(step.has, step.pod); got != step.want {
			t.Errorf("kubelet has %q for %s: got %q, want %q", step.has, step.pod, got, step.want)
		}
	}
	if want := (memoryCertificates{"ns/uid-web/certs/2": "two chain"}); !maps.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
}

// Upstream's plugin uses the wrapped host.
func TestProjectedVolumes_TakeWrappedHost(t *testing.T) {
	deps := &kubelet.Dependencies{VolumePlugins: projected.ProbeVolumePlugins()}
	if err := wrapProjectedPlugin(deps, memoryCertificates{}, zaptest.NewLogger(t)); err != nil {
		t.Fatal(err)
	}
	if _, ok := deps.VolumePlugins[0].(certKeepingPlugin); !ok {
		t.Fatalf("the plugin is a %T", deps.VolumePlugins[0])
	}
	if err := wrapProjectedPlugin(&kubelet.Dependencies{}, memoryCertificates{}, zaptest.NewLogger(t)); err == nil {
		t.Error("a kubelet without projected volumes is taken")
	}
}
