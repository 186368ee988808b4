// Package sizing calculates what a fleet of gateways needs in the cloud: cells, and the resources of the hub's servers and of cloudcore.
//
// Memory was measured with up to 5,000 gateways at one server of a hub (docs/operations/numbers.md); what is said of larger fleets, and of the time
// of processors in them, is an extrapolation.
package sizing

import (
	"fmt"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/hubconf"
)

const (
	// MaxNodes is the largest fleet that can be planned: more gateways need hubs of their own.
	MaxNodes = 100_000
	// MeasuredNodes is the largest fleet that was measured.
	MeasuredNodes = 5_000
	// MaxCells is the largest number of cells: three digits in the names of their accounts.
	MaxCells = 1000

	nodesPerCell = 250
	// nodesPerPartition keeps a stream at 315,000 subjects with 50 objects a node: above a million nats-server writes no index, and scans all
	// of the stream at each start.
	nodesPerPartition = 6_300
	// MaxNodesPerPartition is where a stream reaches that million.
	MaxNodesPerPartition = 20_000
	// manyNodes is where the cost of a new link, for which a server visits all of its links, asks for more servers.
	manyNodes = 30_000
)

// What one gateway with ten pods costs, and what a process costs without any.
const (
	// hubNodeKB is the resident memory of a node on all servers together: its link, its consumer and ten objects. Measured at 5,000 nodes.
	hubNodeKB = 434
	// hubBaseMB is the memory of a server without nodes. Measured.
	hubBaseMB = 75
	// hubIdleCPU is the share of a processor, in thousandths, that 1,000 idle nodes cost all servers together. Measured with 1,500 nodes when
	// each also sent a probe every 5 s, whose share is left out here.
	hubIdleCPU = 190
	// hubLinkCPU is the time of a processor for a new link on all servers together, in milliseconds. Measured with 1,500 nodes.
	hubLinkCPU = 9
	// hubDiskKB is the disk of a node's objects on each server, with the space of messages that were replaced. Calculated from objects of 2 KB.
	hubDiskKB = 250
	// cloudcoreNodeKB is the memory of a node in each cloudcore: ten pods of 9 KB (measured), what they reference, and as much for the
	// garbage collector.
	cloudcoreNodeKB = 200
	// cloudcoreBaseMB is the memory of a cloudcore with ten gateways. Measured.
	cloudcoreBaseMB = 110
	// cloudcoreIdleCPU is the share of a processor, in thousandths, that the heartbeats of 1,000 nodes cost each cloudcore. Calculated.
	cloudcoreIdleCPU = 20
	// cloudcoreLoadCPU is the time of a processor for taking a node over, in milliseconds. Calculated.
	cloudcoreLoadCPU = 3
	// statusPeriod is the time between two updates of a Node's status, in seconds.
	statusPeriod = 300
)

const (
	// returnTime is the time in seconds within which all nodes have links again after the hub was away.
	returnTime = 120
	// takeoverTime is the time in seconds within which the nodes of a lost cloudcore are all loaded.
	takeoverTime = 30
	// headroom multiplies what was calculated: measurements vary, and so do fleets.
	headroom = 1.3
	// leastMemory and leastCPU are what the manifests of deploy/cloud give a process; no plan says less.
	leastMemory = 1024
	leastCPU    = 200
)

// ErrFleetSize reports a number of gateways that cannot be planned for.
var ErrFleetSize = fmt.Errorf("one hub carries 1 to %d gateways", MaxNodes)

// Resources is what one process needs.
type Resources struct {
	MilliCPU  int `json:"milliCPU"`
	MemoryMiB int `json:"memoryMiB"`
	// DiskGiB is 0 for a process without a volume.
	DiskGiB int `json:"diskGiB,omitempty"`
}

// A Plan is what a fleet needs. A cloudcore, and a hub server of several, may be lost: the others have room for its gateways.
type Plan struct {
	Nodes      int       `json:"nodes"`
	HubServers int       `json:"hubServers"`
	Hub        Resources `json:"hub"`
	// Cells and Partitions are what a new installation for such a fleet gets, or what an existing one has.
	Cells      int       `json:"cells"`
	Partitions int       `json:"partitions"`
	Cloudcores int       `json:"cloudcores"`
	Cloudcore  Resources `json:"cloudcore"`
	// APIWrites is the number of writes a second to the Kubernetes API by which an idle fleet keeps its Nodes and Leases, with cloudcore's
	// default budget for Leases.
	APIWrites int `json:"apiWrites"`
	// Extrapolated is true for a fleet that is larger than those that were measured.
	Extrapolated bool `json:"extrapolated"`
}

// ForNodes plans for a number of gateways with ten pods each. hubServers is the number of servers that was chosen, 0 for none.
func ForNodes(nodes, hubServers int) (Plan, error) {
	if nodes < 1 || nodes > MaxNodes {
		return Plan{}, fmt.Errorf("%d: %w", nodes, ErrFleetSize)
	}
	p := Plan{Nodes: nodes, HubServers: hubServers, Cloudcores: 2, Extrapolated: nodes > MeasuredNodes}
	if p.HubServers == 0 {
		p.HubServers = hubServersFor(nodes)
	}
	if nodes > MeasuredNodes {
		p.Cloudcores = 3
	}
	p.Cells, p.Partitions = cellsFor(nodes), PartitionsFor(nodes)
	p.APIWrites = leaseWrites(nodes, p.Cloudcores) + ceilDiv(nodes, statusPeriod)
	p.Hub = hubResources(nodes, max(p.HubServers-1, 1))
	p.Cloudcore = cloudcoreResources(nodes, p.Cloudcores-1)
	return p, nil
}

// PartitionsFor returns the number of streams over which the desired state of a fleet should be spread: more than one only where one would
// hold too much. More do not shorten what gateways feel of a server's death yet (docs/design/0046).
func PartitionsFor(nodes int) int {
	return max(1, ceilDiv(nodes, nodesPerPartition))
}

// cellsFor returns the number of accounts over which a fleet should be spread.
func cellsFor(nodes int) int {
	return min(max(ceilDiv(nodes, nodesPerCell), hubconf.DefaultCells), MaxCells)
}

func hubServersFor(nodes int) int {
	if nodes > manyNodes {
		return 5
	}
	return 3
}

// hubResources returns what each of the servers needs when only left of them carry all nodes.
func hubResources(nodes, left int) Resources {
	idle := float64(nodes) * hubIdleCPU / 1000
	links := float64(nodes) * hubLinkCPU / returnTime
	return Resources{
		MilliCPU:  max(roundUp((idle+links)*headroom/float64(left), 100), leastCPU),
		MemoryMiB: max(roundUp((hubBaseMB+float64(nodes)*hubNodeKB/1000/float64(left))*headroom, 128), leastMemory),
		DiskGiB:   max(roundUp(float64(nodes)*hubDiskKB/1e6*headroom, 1), 8),
	}
}

func cloudcoreResources(nodes, left int) Resources {
	idle := float64(nodes) * cloudcoreIdleCPU / 1000
	loads := float64(nodes) / float64(left+1) * cloudcoreLoadCPU / takeoverTime / float64(left)
	return Resources{
		MilliCPU:  max(roundUp((idle+loads)*headroom, 100), leastCPU),
		MemoryMiB: max(roundUp((cloudcoreBaseMB+float64(nodes)*cloudcoreNodeKB/1000)*headroom, 128), leastMemory),
	}
}

// leaseWrites returns the renewals of Leases a second by all cloudcores with their default budget: each has an equal share of the nodes.
func leaseWrites(nodes, cloudcores int) int {
	fastest := ceilDiv(nodes, int(config.ShortestLeasePeriod.Seconds()))
	slowest := ceilDiv(nodes, int(config.DefaultLeasePeriod.Seconds()))
	return min(fastest, max(slowest, cloudcores*config.DefaultLeasesPerSecond))
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// roundUp rounds up to a multiple of step.
func roundUp(value float64, step int) int {
	whole := int(value)
	if float64(whole) < value {
		whole++
	}
	return ceilDiv(whole, step) * step
}
