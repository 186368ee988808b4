package kit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePorts finds ports of 127.0.0.1 for servers that start later, or again. Nothing else takes them meanwhile: an outgoing connection and
// a listener on port 0 have ports from 32768, and a development cluster from 20000.
func FreePorts(n int) ([]int, error) {
	var ports []int
	const first, count = 12000, 8000
	for range count {
		if len(ports) == n {
			break
		}
		port := first + rand.IntN(count)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // closed below, at once
		if err != nil {
			continue // another server has it
		}
		defer func() { _ = l.Close() }() // held until all are found, so that they differ
		ports = append(ports, port)
	}
	if len(ports) < n {
		return nil, fmt.Errorf("find %d free ports: only %d are left between %d and %d", n, len(ports), first, first+count-1)
	}
	return ports, nil
}
