package ports

import (
	"slices"
	"strconv"

	"github.com/frond-edge/frond/api/config"
)

// computeAssignment assigns each of the wanted nodes a port that no other has, and returns the nodes that got none
// (full). A node that is not alive loses its port if there is no other free one.
func computeAssignment(have map[string]uint16, wanted []string, alive func(node string) bool, ranges []config.PortRange) (next map[string]uint16, full []string) {
	next = make(map[string]uint16, len(have)+len(wanted))
	holder := make(map[uint16]string, len(have))
	for node, port := range have {
		next[node], holder[port] = port, node
	}
	var free, dead []uint16
	for _, r := range ranges {
		for port := int(r.First); port <= int(r.Last); port++ {
			switch node, taken := holder[uint16(port)]; {
			case !taken:
				free = append(free, uint16(port))
			case !alive(node):
				dead = append(dead, uint16(port))
			}
		}
	}
	for _, node := range slices.Sorted(slices.Values(wanted)) {
		if port, has := next[node]; has && inRanges(port, ranges) {
			continue
		}
		if len(free) == 0 {
			free, dead = dead, nil
		}
		if len(free) == 0 {
			full = append(full, node)
			continue
		}
		delete(next, holder[free[0]]) // the port of a node that is gone; deleting "" does nothing
		next[node], free = free[0], free[1:]
	}
	return next, full
}

func inRanges(port uint16, ranges []config.PortRange) bool {
	return slices.ContainsFunc(ranges, func(r config.PortRange) bool { return r.First <= port && port <= r.Last })
}

// parsePorts parses the ConfigMap's data. It leaves out invalid entries, and ports that two nodes have, which only a
// manual edit can have caused.
func parsePorts(data map[string]string) map[string]uint16 {
	have, count := make(map[string]uint16, len(data)), map[uint16]int{}
	for node, text := range data {
		if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
			have[node] = uint16(port)
			count[uint16(port)]++
		}
	}
	for node, port := range have {
		if count[port] > 1 {
			delete(have, node)
		}
	}
	return have
}

func formatPorts(have map[string]uint16) map[string]string {
	data := make(map[string]string, len(have))
	for node, port := range have {
		data[node] = strconv.Itoa(int(port))
	}
	return data
}
