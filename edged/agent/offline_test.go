package agent_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// offlineFor is how long the gateway has had no link. A kubelet uses only the machine's clock, so the test does not advance
// the clock but back-dates the objects: those created before the link went down are that old, and those valid for an hour
// or a month have expired.
const offlineFor = 60 * 24 * time.Hour

// tokenCloud is a cloud that answers only token requests, with a token that expired an hour after the link went down; ""
// answers nothing at all.
type tokenCloud string

func (u tokenCloud) Do(_ context.Context, r wire.KubeRequest) (wire.KubeReply, error) {
	if u == "" || !strings.HasSuffix(r.Path, "/token") {
		return wire.KubeReply{}, wire.ErrOffline
	}
	hour := int64(3607)
	body, err := json.Marshal(&authenticationv1.TokenRequest{
		Spec:     authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour},
		TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"},
		Status:   authenticationv1.TokenRequestStatus{Token: string(u), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour - offlineFor))},
	})
	return wire.KubeReply{Code: http.StatusCreated, ContentType: "application/json", Body: body}, err
}

// A gateway whose tokens and certificates expired long ago restarts its agent, without a link: no container is restarted or
// created anew, and the pods' volumes still hold their tokens.
func TestNode_OfflineRestartKeepsContainers(t *testing.T) {
	dir := t.TempDir()
	storePods(t, dir, makeOfflinePod)
	writeExpiredServingCert(t, filepath.Join(dir, "kubelet", "pki"))
	runtime := startRuntime(t, dir)
	const token = "of-sixty-days-ago"
	kill := startAgent(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint(), Token: token}, nil)
	before := runtime.awaitContainers(t)
	kill()
	// A reboot clears the kubelet's own copy in memory: the mounted token now comes from the store.
	for _, file := range tokenFiles(t, dir) {
		kit.Must(t, os.Remove(file))
	}
	log := &logBuffer{}
	startAgent(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint()}, log)
	kit.Succeeds(t, time.Minute, func() error { return log.contains("Starting to sync pod status") })
	kit.Succeeds(t, time.Minute, func() error {
		files := tokenFiles(t, dir)
		if len(files) != 3 {
			return fmt.Errorf("%d of 3 tokens mounted again", len(files))
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err != nil || string(data) != token {
				return fmt.Errorf("%s: %q, %w", file, data, err)
			}
		}
		return nil
	})
	runtime.wantUnchanged(t, before, 5*time.Second)
}

// tokenFiles returns the tokens in the volumes of all pods: the files themselves, not the links to them.
func tokenFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(dir, "kubelet", "pods"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // the kubelet replaces folders meanwhile
		case err == nil && d.Name() == "token" && d.Type().IsRegular():
			files = append(files, path)
		}
		return err
	})
	kit.Must(t, err)
	return files
}

// makeOfflinePod changes a pod to one that has run, with a token, since before the link went down.
func makeOfflinePod(pod *corev1.Pod) {
	hour, mode, then := int64(3607), int32(0o644), metav1.NewTime(time.Now().Add(-offlineFor))
	pod.CreationTimestamp, pod.Spec.ServiceAccountName = then, "default"
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/tokens"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources:     []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &hour}}},
	}}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &then}
}

// writeExpiredServingCert writes the kubelet's earlier serving certificate, a month too old.
func writeExpiredServingCert(t *testing.T, dir string) {
	t.Helper()
	pair, err := mint.SelfSign(x509.Certificate{
		Subject: pkix.Name{CommonName: "edge-1"}, DNSNames: []string{"edge-1"},
		NotBefore: time.Now().Add(-offlineFor), NotAfter: time.Now().Add(-offlineFor / 2),
	})
	kit.Must(t, err)
	cert, key, err := pair.PEM()
	kit.Must(t, err)
	kit.Must(t, os.MkdirAll(dir, 0o700))
	kit.Must(t, os.WriteFile(filepath.Join(dir, "kubelet-server-current.pem"), append(cert, key...), 0o600))
}
