package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

// raceTransport runs a function right before the first request that matches is sent.
type raceTransport struct {
	http.RoundTripper
	method, path string
	once         *sync.Once
	action       func()
}

func (o raceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == o.method && strings.HasSuffix(r.URL.Path, o.path) {
		o.once.Do(o.action)
	}
	return o.RoundTripper.RoundTrip(r)
}

// TestInit_KeepsKeysOfConcurrentRun runs another whole init between one run's read and its write.
func TestInit_KeepsKeysOfConcurrentRun(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path string
		lost         string // an entry of Secret frond-cloudcore; "" is everything
	}{
		"before it makes the first Secret":    {method: http.MethodPost, path: "/secrets"},
		"before it fills the first Secret":    {method: http.MethodPatch, path: "/secrets/frond-ca"},
		"before it completes a Secret":        {method: http.MethodPatch, path: "/secrets/frond-cloudcore", lost: install.EntryHubSeed},
		"before it makes a Secret further on": {method: http.MethodPatch, path: "/secrets/frond-hub-0"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstalledCluster(t)
			if tt.lost != "" {
				i.mustRun("init", "--hub-servers", "1")
				secrets := i.client.CoreV1().Secrets(names.Namespace)
				o, err := secrets.Get(t.Context(), install.FolderCloudcore, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				delete(o.Data, tt.lost)
				if _, err := secrets.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			var others install.Files
			cfg := sharedCluster.Cluster(t).Config()
			cfg.Wrap(func(below http.RoundTripper) http.RoundTripper {
				return raceTransport{RoundTripper: below, method: tt.method, path: tt.path, once: new(sync.Once), action: func() {
					if code, _, errs := i.runCommand("init", "--hub-servers", "1"); code != 0 {
						t.Errorf("the other run: %s", errs)
					}
					others = i.secretFiles()
				}}
			})
			if _, err := install.Init(t.Context(), rest.CopyConfig(cfg), install.Options{Settings: install.Settings{HubServers: 1}}, time.Now()); err != nil {
				t.Fatal(err)
			}
			if len(others) == 0 {
				t.Fatal("no run came between")
			}
			if got := changedFiles(others, i.secretFiles()); len(got) > 0 {
				t.Errorf("it replaced what the other one made: %v", got)
			}
		})
	}
}
