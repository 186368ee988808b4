package folder_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/devcluster/folder"
)

func TestMergeSpec(t *testing.T) {
	small := folder.Spec{Edges: 1, Cloudcores: 1, Hubs: 1, Runtime: folder.Hollow}
	for name, tt := range map[string]struct {
		have, want, result folder.Spec
		root               bool
		problem            string
	}{
		"new as root":   {root: true, result: folder.Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: folder.Containerd}},
		"new as user":   {result: folder.Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: folder.Hollow}},
		"new and small": {want: small, result: small},
		"as it is":      {have: small, result: small},
		"more edges": {
			have: small, want: folder.Spec{Edges: 3},
			result: folder.Spec{Edges: 3, Cloudcores: 1, Hubs: 1, Runtime: folder.Hollow},
		},
		"fewer edges":     {have: folder.Spec{Edges: 2, Cloudcores: 1, Hubs: 1}, want: folder.Spec{Edges: 1}, problem: "cannot become 1"},
		"another hub":     {have: small, want: folder.Spec{Hubs: 3}, problem: "hubs: the cluster has 1"},
		"partitions":      {want: folder.Spec{Partitions: 3}, result: folder.Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Partitions: 3, Runtime: folder.Hollow}},
		"more partitions": {have: small, want: folder.Spec{Partitions: 3}, problem: "partitions: the cluster has 0"},
		"two hubs":        {want: folder.Spec{Hubs: 2}, problem: "choose 1 or 3"},
		"no root":         {want: folder.Spec{Runtime: folder.Containerd}, problem: "needs root"},
		"other runtime":   {have: small, want: folder.Spec{Runtime: folder.Containerd}, root: true, problem: "cannot become containerd"},
		"unknown runtime": {want: folder.Spec{Runtime: "docker"}, problem: `"docker" is neither`},
		"services": {
			want: folder.Spec{Services: true, Runtime: folder.Hollow}, root: true, problem: "--services and --kube-proxy need gateways with a network",
		},
		"services later": {have: small, want: folder.Spec{Services: true}, problem: "services: the cluster was made without"},
		"negative":       {want: folder.Spec{Edges: -1}, problem: "edges: -1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := folder.MergeSpec(tt.have, tt.want, tt.root)
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
	busy := map[int]bool{20500: true, 20601: true} // another cluster's etcd, and something else
	free := func(p int) bool { return !busy[p] }
	first, err := folder.ChoosePorts(nil, []string{"a", "b"}, 5, free)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"a": 20600, "b": 20602}, first); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	busy[20600] = true // its own component listens now: the port stays
	second, err := folder.ChoosePorts(first, []string{"a", "b", "c"}, 5, free)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"a": 20600, "b": 20602, "c": 20603}, second); diff != "" {
		t.Errorf("ports after growing (-want +got):\n%s", diff)
	}
	if _, err := folder.ChoosePorts(nil, []string{"a"}, 0, func(int) bool { return false }); err == nil {
		t.Error("no error although no port is free")
	}
}

func TestPortReservation_KeepsOthersAway(t *testing.T) {
	var mine, others folder.PortReservation
	names := []string{"a", "b"}
	first, err := folder.ChoosePorts(nil, names, 7, mine.Take)
	if err != nil {
		t.Fatal(err)
	}
	second, err := folder.ChoosePorts(nil, names, 7, others.Take)
	if err != nil {
		t.Fatal(err)
	}
	if first["a"]/100 == second["a"]/100 {
		t.Errorf("two clusters that start together begin at ports %d and %d", first["a"], second["a"])
	}
	for _, port := range first {
		if folder.PortFree(port) {
			t.Errorf("port %d is free while it is reserved", port)
		}
	}
	if err := errors.Join(mine.Release(), others.Release()); err != nil {
		t.Fatal(err)
	}
	for _, port := range first {
		if !folder.PortFree(port) {
			t.Errorf("port %d is not free after its release", port)
		}
	}
}

func TestPortNames_AreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range folder.PortNames(folder.Spec{Edges: 3, Cloudcores: 2, Hubs: 3, Runtime: folder.Hollow}) {
		if seen[name] {
			t.Errorf("%s twice", name)
		}
		seen[name] = true
	}
}

func TestLock_IsExclusive(t *testing.T) {
	path := t.TempDir() + "/lock"
	unlock, err := folder.Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := folder.Lock(ctx, path); err == nil {
		t.Fatal("the lock was given twice")
	}
	unlock()
	again, err := folder.Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestID_FitsInterfaceAndSocketNames(t *testing.T) {
	a, b := folder.ID("/work/a/.frond"), folder.ID("/work/b/.frond")
	if a == b || len(a) != len("frond-12345678") {
		t.Errorf("ids %q and %q", a, b)
	}
}
