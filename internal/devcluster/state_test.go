package devcluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

func TestMergeSpec(t *testing.T) {
	small := devcluster.Spec{Edges: 1, Cloudcores: 1, Hubs: 1, Runtime: devcluster.Hollow}
	for name, tt := range map[string]struct {
		have, want, result devcluster.Spec
		root               bool
		problem            string
	}{
		"new as root":   {root: true, result: devcluster.Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: devcluster.Containerd}},
		"new as user":   {result: devcluster.Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: devcluster.Hollow}},
		"new and small": {want: small, result: small},
		"as it is":      {have: small, result: small},
		"more edges": {
			have: small, want: devcluster.Spec{Edges: 3},
			result: devcluster.Spec{Edges: 3, Cloudcores: 1, Hubs: 1, Runtime: devcluster.Hollow},
		},
		"fewer edges":     {have: devcluster.Spec{Edges: 2, Cloudcores: 1, Hubs: 1}, want: devcluster.Spec{Edges: 1}, problem: "cannot become 1"},
		"another hub":     {have: small, want: devcluster.Spec{Hubs: 3}, problem: "hubs: the cluster has 1"},
		"two hubs":        {want: devcluster.Spec{Hubs: 2}, problem: "choose 1 or 3"},
		"no root":         {want: devcluster.Spec{Runtime: devcluster.Containerd}, problem: "needs root"},
		"other runtime":   {have: small, want: devcluster.Spec{Runtime: devcluster.Containerd}, root: true, problem: "cannot become containerd"},
		"unknown runtime": {want: devcluster.Spec{Runtime: "docker"}, problem: `"docker" is neither`},
		"services": {
			want: devcluster.Spec{Services: true, Runtime: devcluster.Hollow}, root: true, problem: "--services and --kube-proxy need gateways with a network",
		},
		"services later": {have: small, want: devcluster.Spec{Services: true}, problem: "services: the cluster was made without"},
		"negative":       {want: devcluster.Spec{Edges: -1}, problem: "edges: -1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := devcluster.MergeSpec(tt.have, tt.want, tt.root)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("got error %v, want one with %q", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.result, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChoosePorts(t *testing.T) {
	busy := map[int]bool{20005: true, 20007: true}
	free := func(p int) bool { return !busy[p] }
	first, err := devcluster.ChoosePorts(nil, []string{"a", "b"}, 5, free)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"a": 20006, "b": 20008}, first); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	busy[20006] = true // its own component listens now: the port stays
	second, err := devcluster.ChoosePorts(first, []string{"a", "b", "c"}, 5, free)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"a": 20006, "b": 20008, "c": 20009}, second); diff != "" {
		t.Errorf("ports after growing (-want +got):\n%s", diff)
	}
	if _, err := devcluster.ChoosePorts(nil, []string{"a"}, 0, func(int) bool { return false }); err == nil {
		t.Error("no error although no port is free")
	}
}

func TestPortNames_AreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range devcluster.PortNames(devcluster.Spec{Edges: 3, Cloudcores: 2, Hubs: 3, Runtime: devcluster.Hollow}) {
		if seen[name] {
			t.Errorf("%s twice", name)
		}
		seen[name] = true
	}
}

func TestAPIPath(t *testing.T) {
	for want, key := range map[string]wire.Key{
		"/api/v1/namespaces/default/configmaps/web":                   {Resource: "configmaps", Namespace: "default", Name: "web"},
		"/api/v1/nodes/edge-1":                                        {Resource: "nodes", Name: "edge-1"},
		"/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/web-1": {Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "a", Name: "web-1"},
	} {
		if got := devcluster.APIPath(key); got != want {
			t.Errorf("path of %v: got %s, want %s", key, got, want)
		}
	}
}

func TestLockFolder_IsExclusive(t *testing.T) {
	path := t.TempDir() + "/lock"
	unlock, err := devcluster.LockFolder(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := devcluster.LockFolder(ctx, path); err == nil {
		t.Fatal("the lock was given twice")
	}
	unlock()
	again, err := devcluster.LockFolder(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestClusterID_FitsInterfaceAndSocketNames(t *testing.T) {
	a, b := devcluster.ClusterID("/work/a/.frond"), devcluster.ClusterID("/work/b/.frond")
	if a == b || len(a) != len("frond-12345678") {
		t.Errorf("ids %q and %q", a, b)
	}
}
