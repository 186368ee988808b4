package syncstate

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/test/kit/clitest"
)

// TestStatus_TrustsAuthorityOfInit queries a cloudcore with the certificate of frond init, whose CA is read from the cluster.
func TestStatus_TrustsAuthorityOfInit(t *testing.T) {
	files, _, err := install.Fill(nil, install.Spec{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	in := func(entry string) []byte { return files[install.FolderCloudcore+"/"+entry] }
	cert, err := tls.X509KeyPair(in(install.EntryCert), in(install.EntryKey))
	if err != nil {
		t.Fatal(err)
	}
	cloudcore := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(inspect.Nodes{Nodes: []inspect.Node{{Name: "gw-17"}}}) // a lost answer fails the test
	}))
	cloudcore.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	cloudcore.StartTLS()
	t.Cleanup(cloudcore.Close)
	told := true
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !told || r.URL.Path != "/api/v1/namespaces/frond-system/configmaps/frond-hub-ca" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{"ca.crt": string(in(install.EntryBundle))}})
	}))
	t.Cleanup(cluster.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"` + cluster.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := clitest.Run(NewStatus(), "--server", cloudcore.URL, "--kubeconfig", kubeconfig); code != 0 || !strings.Contains(out, "gw-17") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	told = false
	if code, out, errs := clitest.Run(NewStatus(), "--server", cloudcore.URL, "--kubeconfig", kubeconfig); code != 1 || out != "" || !strings.Contains(errs, "unknown authority") {
		t.Errorf("without the authority: code %d, %q, %q", code, out, errs)
	}
}
