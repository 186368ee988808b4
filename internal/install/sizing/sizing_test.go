package sizing_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/install/sizing"
)

func TestForNodes(t *testing.T) {
	for _, tt := range []struct {
		nodes, servers int
		want           sizing.Plan
	}{
		{nodes: 100, want: sizing.Plan{
			Nodes: 100, HubServers: 3, Cells: 64, Partitions: 1, Hub: sizing.Resources{MilliCPU: 200, MemoryMiB: 1024, DiskGiB: 8},
			Cloudcores: 2, Cloudcore: sizing.Resources{MilliCPU: 200, MemoryMiB: 1024}, APIWrites: 11,
		}},
		{nodes: 3_000, want: sizing.Plan{ // the budget of two cloudcores
			Nodes: 3_000, HubServers: 3, Cells: 64, Partitions: 1, Hub: sizing.Resources{MilliCPU: 600, MemoryMiB: 1024, DiskGiB: 8},
			Cloudcores: 2, Cloudcore: sizing.Resources{MilliCPU: 300, MemoryMiB: 1024}, APIWrites: 210,
		}},
		{nodes: 10_000, want: sizing.Plan{
			Nodes: 10_000, HubServers: 3, Cells: 64, Partitions: 2, Hub: sizing.Resources{MilliCPU: 1800, MemoryMiB: 2944, DiskGiB: 8},
			Cloudcores: 3, Cloudcore: sizing.Resources{MilliCPU: 500, MemoryMiB: 2816}, APIWrites: 534, Extrapolated: true,
		}},
		{nodes: 100_000, servers: 3, want: sizing.Plan{
			Nodes: 100_000, HubServers: 3, Cells: 400, Partitions: 16, Hub: sizing.Resources{MilliCPU: 17300, MemoryMiB: 28416, DiskGiB: 33},
			Cloudcores: 3, Cloudcore: sizing.Resources{MilliCPU: 4800, MemoryMiB: 26240}, APIWrites: 5334, Extrapolated: true,
		}},
	} {
		got, err := sizing.ForNodes(tt.nodes, tt.servers)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%d nodes: %v (-want +got):\n%s", tt.nodes, err, diff)
		}
	}
}

func TestForNodes_Refuses(t *testing.T) {
	for _, nodes := range []int{-1, 0, sizing.MaxNodes + 1} {
		if p, err := sizing.ForNodes(nodes, 0); !errors.Is(err, sizing.ErrFleetSize) {
			t.Errorf("%d nodes: %+v, %v", nodes, p, err)
		}
	}
}

// TestForNodes_GrowsWithTheFleet guards against figures that shrink or a server that is lost without room for its gateways.
func TestForNodes_GrowsWithTheFleet(t *testing.T) {
	before, err := sizing.ForNodes(1, 3)
	if err != nil {
		t.Fatal(err)
	}
	for nodes := 500; nodes <= sizing.MaxNodes; nodes += 500 {
		now, err := sizing.ForNodes(nodes, 3)
		if err != nil {
			t.Fatal(err)
		}
		if now.Hub.MilliCPU < before.Hub.MilliCPU || now.Hub.MemoryMiB < before.Hub.MemoryMiB || now.Cloudcore.MemoryMiB < before.Cloudcore.MemoryMiB ||
			now.Cells < before.Cells || now.Partitions < before.Partitions {
			t.Fatalf("%d nodes need less than fewer: %+v, %+v", nodes, now, before)
		}
		before = now
	}
}
