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

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/hollow/hollowtest"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
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
	newOfflineStore(t, dir)
	writeExpiredServingCert(t, filepath.Join(dir, "kubelet", "pki"))
	runtime, err := hollow.New(hollow.Config{Socket: filepath.Join(t.TempDir(), "cri.sock"), Dir: dir}, zaptest.NewLogger(t))
	kit.Must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running errgroup.Group
	running.Go(func() error { return runtime.Start(ctx) })
	t.Cleanup(func() {
		stop()
		kit.Must(t, running.Wait())
	})
	<-runtime.Ready()
	bed := hollowtest.Dial(t, runtime.Endpoint())
	containers := func() string {
		list, err := bed.Runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		kit.Must(t, err)
		var all []string
		for _, c := range list.GetContainers() {
			all = append(all, fmt.Sprint(c.GetId(), " ", c.GetState(), " attempt ", c.GetMetadata().GetAttempt()))
		}
		return strings.Join(all, "\n")
	}
	const token = "of-sixty-days-ago"
	kill := startAgentAs(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint(), Token: token}, nil)
	eventually(t, "three containers", func() error {
		if n := strings.Count(containers(), "RUNNING"); n != 3 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	before := containers()
	kill()
	// A reboot clears the kubelet's own copy in memory: the mounted token now comes from the store.
	for _, file := range tokenFiles(t, dir) {
		kit.Must(t, os.Remove(file))
	}
	log := &logBuffer{}
	startAgentAs(t, agentOrder{Dir: dir, Endpoint: runtime.Endpoint()}, log)
	eventually(t, "the kubelet at work", func() error { return log.contains("Starting to sync pod status") })
	eventually(t, "the tokens mounted again", func() error {
		files := tokenFiles(t, dir)
		if len(files) != 3 {
			return fmt.Errorf("%d of 3 tokens", len(files))
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err != nil || string(data) != token {
				return fmt.Errorf("%s: %q, %w", file, data, err)
			}
		}
		return nil
	})
	// A kubelet stops unwanted containers at its next clean-up, every 2 s.
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if after := containers(); after != before {
			t.Fatalf("containers\n%s\nafter\n%s", after, before)
		}
		select {
		case <-deadline:
			return
		case <-tick.C:
		}
	}
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

// newOfflineStore creates a store with three pods that have run since before the link went down.
func newOfflineStore(t *testing.T, dir string) {
	t.Helper()
	l := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(dir, "nats")})
	defer l.Stop()
	js, err := jetstream.New(l.Client())
	kit.Must(t, err)
	st, err := openStore(t.Context(), js, dir, zaptest.NewLogger(t))
	kit.Must(t, err)
	kit.Must(t, st.Replace(t.Context(), nil, "s1", 1))
	then := metav1.NewTime(time.Now().Add(-offlineFor))
	for i, name := range []string{"pod-a", "pod-b", "pod-c"} {
		hour, no, grace, mode := int64(3607), false, int64(1), int32(0o644)
		data, err := json.Marshal(&corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: "1", CreationTimestamp: then},
			Spec: corev1.PodSpec{
				NodeName: "edge-1", RestartPolicy: corev1.RestartPolicyAlways, ServiceAccountName: "default", TerminationGracePeriodSeconds: &grace,
				EnableServiceLinks: &no, DNSPolicy: corev1.DNSDefault,
				Containers: []corev1.Container{{
					Name: "c", Image: "nginx", ImagePullPolicy: corev1.PullIfNotPresent,
					VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/tokens"}},
				}},
				Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					DefaultMode: &mode,
					Sources:     []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &hour}}},
				}}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &then},
		})
		kit.Must(t, err)
		seq := uint64(i) + 2 //nolint:gosec // a small number
		kit.Must(t, st.Apply(t.Context(), []wire.Message{{
			Key: wire.Key{Resource: "pods", Namespace: "default", Name: name}, Op: wire.Apply, UID: "uid-" + name, Version: "1", Object: data, Sequence: seq,
		}}, seq))
	}
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
