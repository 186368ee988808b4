// Command client is a small program for a pod on a gateway. It follows ConfigMaps, widgets, leases and events of its namespace with
// client-go, as any operator does, takes part in a leader election, writes an object at intervals, tries requests that must be refused,
// and writes the results to a file.
//
// It knows nothing of Frond: only what every pod is given about Kubernetes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// State is the content of the program's file.
type State struct {
	Started    time.Time         `json:"started"`
	Synced     bool              `json:"synced"`
	ConfigMaps map[string]string `json:"configMaps"` // data.key by name
	Widgets    map[string]int64  `json:"widgets"`    // spec.size by name
	Writes     int               `json:"writes"`     // successful ones
	WriteError string            `json:"writeError"` // of the last one
	Tries      map[string]int    `json:"tries"`      // status of requests that must fail
	Leads      bool              `json:"leads"`
	Holders    map[string]string `json:"holders"` // of leases, from the watch
	Heard      map[string]int    `json:"heard"`   // events of all namespaces by reason, from the watch
	Refused    int64             `json:"refused"` // requests for events that were refused as bad requests
}

// requestTimeout bounds one request; period is the pause between rounds.
const (
	requestTimeout = 10 * time.Second
	roundInterval  = time.Second
)

func main() {
	out := flag.String("out", "/out", "folder of the file state.json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT) //nolint:forbidigo // it is a program
	err := run(ctx, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string) error {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return err
	}
	c, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(c, 0, string(namespace), nil)
	mapsSeen, widgetsSeen := factory.ForResource(maps).Informer(), factory.ForResource(widgets).Informer()
	leasesSeen := factory.ForResource(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}).Informer()
	everywhere := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
	var refused atomic.Int64
	eventsSeen, err := followEvents(everywhere, &refused)
	if err != nil {
		return err
	}
	for _, f := range []dynamicinformer.DynamicSharedInformerFactory{factory, everywhere} {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	var leads atomic.Bool
	var elections sync.WaitGroup
	defer elections.Wait()
	elections.Go(func() { runElections(ctx, cfg, string(namespace), &leads) })
	state := State{Started: time.Now()}
	writer := c.Resource(maps).Namespace(string(namespace))
	for ctx.Err() == nil {
		state.Synced = mapsSeen.HasSynced() && widgetsSeen.HasSynced()
		state.Leads, state.Refused = leads.Load(), refused.Load()
		state.recordStores(mapsSeen.GetStore(), widgetsSeen.GetStore(), leasesSeen.GetStore(), eventsSeen.GetStore())
		if err := applyConfigMap(ctx, writer, state.Writes+1); err != nil {
			state.WriteError = err.Error()
		} else {
			state.Writes, state.WriteError = state.Writes+1, ""
		}
		state.Tries = tryForbidden(ctx, cfg)
		if err := saveState(out, state); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(roundInterval):
		}
	}
	return nil
}

// followEvents follows events, and counts the requests for them that were refused as bad requests.
func followEvents(all dynamicinformer.DynamicSharedInformerFactory, refused *atomic.Int64) (cache.SharedIndexInformer, error) {
	seen := all.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Informer()
	return seen, seen.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		if apierrors.IsBadRequest(err) {
			refused.Add(1)
		}
	})
}

// recordStores records the content of the informers.
func (s *State) recordStores(maps, widgets, leases, events cache.Store) {
	s.ConfigMaps, s.Widgets, s.Holders, s.Heard = map[string]string{}, map[string]int64{}, map[string]string{}, map[string]int{}
	forEachObject(leases, func(u *unstructured.Unstructured) {
		s.Holders[u.GetName()], _, _ = unstructured.NestedString(u.Object, "spec", "holderIdentity")
	})
	forEachObject(events, func(u *unstructured.Unstructured) {
		reason, _, _ := unstructured.NestedString(u.Object, "reason")
		s.Heard[reason]++
	})
	forEachObject(maps, func(u *unstructured.Unstructured) {
		s.ConfigMaps[u.GetName()], _, _ = unstructured.NestedString(u.Object, "data", "key")
	})
	forEachObject(widgets, func(u *unstructured.Unstructured) {
		s.Widgets[u.GetName()], _, _ = unstructured.NestedInt64(u.Object, "spec", "size")
	})
}

func forEachObject(s cache.Store, f func(*unstructured.Unstructured)) {
	for _, o := range s.List() {
		if u, ok := o.(*unstructured.Unstructured); ok {
			f(u)
		}
	}
}

// runElections takes part in leader elections repeatedly.
func runElections(ctx context.Context, cfg *rest.Config, namespace string, leads *atomic.Bool) {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		return
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: "leader"}, Client: c.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "robot"},
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads.Store(true) },
				OnStoppedLeading: func() { leads.Store(false) },
			},
		})
	}
}

// applyConfigMap applies a ConfigMap, server-side.
func applyConfigMap(ctx context.Context, c dynamic.ResourceInterface, n int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := c.Apply(ctx, "echo", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "echo"}, "data": map[string]any{"count": fmt.Sprint(n)},
	}}, metav1.ApplyOptions{FieldManager: "client", Force: true})
	return err
}

// tryForbidden sends requests that no pod may make, and returns the status codes.
func tryForbidden(ctx context.Context, cfg *rest.Config) map[string]int {
	answers := map[string]int{}
	mine, err := os.ReadFile(cfg.BearerTokenFile)
	if err != nil {
		return answers
	}
	token := strings.TrimSpace(string(mine))
	forged := token[:strings.LastIndexByte(token, '.')+1] + "c3dvcmRmaXNo"
	bare := rest.AnonymousClientConfig(cfg)
	client, err := rest.HTTPClientFor(bare)
	if err != nil {
		return answers
	}
	for name, t := range map[string]struct{ path, token string }{
		"others' secrets": {"/api/v1/namespaces/kube-system/secrets", token},
		"all secrets":     {"/api/v1/secrets", token},
		"the store":       {"/frond/store", token},
		"others' tokens":  {"/apis/frond.io/v1/tokens", token},
		"forged":          {"/api/v1/namespaces/default/configmaps", forged},
		"nobody":          {"/api/v1/namespaces/default/configmaps", ""},
	} {
		answers[name] = requestStatus(ctx, client, cfg.Host+t.path, t.token)
	}
	return answers
}

func requestStatus(ctx context.Context, client *http.Client, url, token string) int {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func saveState(out string, state State) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	temporary := filepath.Join(out, ".state.json")
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(out, "state.json"))
}
