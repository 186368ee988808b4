// Package sizing calculates what a fleet of gateways needs in the cloud: cells, and the resources of the hub's servers and of cloudcore.
//
// The figures that it calculates with were measured with up to 5,000 gateways on one machine (docs/operations/numbers.md); what they say
// of larger fleets is an extrapolation.
package sizing

import (
	"errors"
	"fmt"
)

const (
	// MaxNodes is the largest fleet that can be planned: more gateways need hubs of their own.
	MaxNodes = 100_000
	// MeasuredNodes is the largest fleet that was measured.
	MeasuredNodes = 5_000

	minCells     = 64
	maxCells     = 1000
	nodesPerCell = 250
	// manyNodes is where the cost of a new link, for which a server visits all of its links, asks for more servers.
	manyNodes = 30_000
)

// What one gateway with ten pods costs, and what a process costs without any.
const (
	// hubNodeKB is the memory of a node on all servers together: its link, its consumer and ten objects.
	hubNodeKB = 270
	// hubBaseMB is the memory of a server without nodes.
	hubBaseMB = 65
	// hubIdleCPU is the share of a processor, in thousandths, that 1,000 idle nodes cost all servers together.
	hubIdleCPU = 190
	// hubLinkCPU is the time of a processor for a new link on all servers together, in milliseconds.
	hubLinkCPU = 9
	// hubDiskKB is the disk of a node's objects on each server, with the space of messages that were replaced.
	hubDiskKB = 250
	// cloudcoreNodeKB is the memory of a node in each cloudcore: ten pods of 9 KB, what they reference, and as much for the collector.
	cloudcoreNodeKB = 200
	cloudcoreBaseMB = 50
	// cloudcoreIdleCPU is the share of a processor, in thousandths, that the heartbeats of 1,000 nodes cost each cloudcore.
	cloudcoreIdleCPU = 20
	// cloudcoreLoadCPU is the time of a processor for taking a node over, in milliseconds.
	cloudcoreLoadCPU = 3
	// leasePeriod is the time between two renewals of a Node's Lease, and statusPeriod between two updates of its status, in seconds.
	leasePeriod  = 10
	statusPeriod = 300
)

const (
	// returnTime is the time in seconds within which all nodes have links again after the hub was away.
	returnTime = 120
	// takeoverTime is the time in seconds within which the nodes of a lost cloudcore are all loaded.
	takeoverTime = 30
	// headroom multiplies what was calculated: measurements vary, and so do fleets.
	headroom = 1.3
)

// ErrTooMany reports a fleet that one hub should not carry.
var ErrTooMany = errors.New("too many gateways for one hub")

// Resources is what one process needs.
type Resources struct {
	MilliCPU  int `json:"milliCPU"`
	MemoryMiB int `json:"memoryMiB"`
	// DiskGiB is 0 for a process without a volume.
	DiskGiB int `json:"diskGiB,omitempty"`
}

// A Plan is what a fleet needs. A hub server and a cloudcore may be lost: the others have room for its gateways.
type Plan struct {
	Nodes      int       `json:"nodes"`
	Cells      int       `json:"cells"`
	HubServers int       `json:"hubServers"`
	Hub        Resources `json:"hub"`
	Cloudcores int       `json:"cloudcores"`
	Cloudcore  Resources `json:"cloudcore"`
	// APIWrites is the number of writes a second to the Kubernetes API by which an idle fleet keeps its Nodes and Leases.
	APIWrites int `json:"apiWrites"`
	// Extrapolated is true for a fleet that is larger than those that were measured.
	Extrapolated bool `json:"extrapolated"`
}

// ForNodes plans for a number of gateways with ten pods each. hubServers is the number of servers that was chosen, 0 for none.
func ForNodes(nodes, hubServers int) (Plan, error) {
	if nodes < 1 || nodes > MaxNodes {
		return Plan{}, fmt.Errorf("%d gateways: %w: plan 1 to %d", nodes, ErrTooMany, MaxNodes)
	}
	p := Plan{
		Nodes: nodes, Cells: CellsFor(nodes), HubServers: hubServers, Cloudcores: 2,
		APIWrites: ceilDiv(nodes, leasePeriod) + ceilDiv(nodes, statusPeriod), Extrapolated: nodes > MeasuredNodes,
	}
	if p.HubServers == 0 {
		p.HubServers = hubServersFor(nodes)
	}
	if nodes > MeasuredNodes {
		p.Cloudcores = 3
	}
	p.Hub = hubResources(nodes, max(p.HubServers-1, 1))
	p.Cloudcore = cloudcoreResources(nodes, p.Cloudcores-1)
	return p, nil
}

// CellsFor returns the number of accounts over which a fleet should be spread.
func CellsFor(nodes int) int { return min(max(ceilDiv(nodes, nodesPerCell), minCells), maxCells) }

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
		MilliCPU:  roundUp((idle+links)*headroom/float64(left), 100),
		MemoryMiB: roundUp((hubBaseMB+float64(nodes)*hubNodeKB/1000/float64(left))*headroom, 128),
		DiskGiB:   max(roundUp(float64(nodes)*hubDiskKB/1e6*headroom, 1), 8),
	}
}

func cloudcoreResources(nodes, left int) Resources {
	idle := float64(nodes) * cloudcoreIdleCPU / 1000
	loads := float64(nodes) / float64(left+1) * cloudcoreLoadCPU / takeoverTime / float64(left)
	return Resources{
		MilliCPU:  roundUp((idle+loads)*headroom, 100),
		MemoryMiB: roundUp((cloudcoreBaseMB+float64(nodes)*cloudcoreNodeKB/1000)*headroom, 128),
	}
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
