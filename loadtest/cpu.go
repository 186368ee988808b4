package loadtest

import (
	"os"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/loadtest/procfs"
)

// cpuTime is the CPU time that a group of processes has used so far. A process that has ended counts as 0, so a round with a restart shows a
// negative value.
type cpuTime struct {
	group string
	used  time.Duration
}

// readCPU reads the CPU time of each group of the cluster's processes, in the order of the report, then of this process and of the rest of
// the machine.
func readCPU(w *environment) []cpuTime {
	spec := w.cluster.Spec()
	var list []cpuTime
	var known time.Duration
	for _, g := range []struct {
		name  string
		parts []string
	}{
		{"kubernetes", []string{"etcd", "apiserver", "controller-manager", "scheduler"}},
		{"hub", folder.Names("hub", spec.Hubs)},
		{"cloudcore", folder.Names("cloudcore", spec.Cloudcores)},
		{"edgecore", w.edges},
		{"wan", []string{"wan"}},
	} {
		t := cpuTime{group: g.name}
		for _, part := range g.parts {
			t.used += procfs.CPU(w.cluster.PID(part))
		}
		list, known = append(list, t), known+t.used
	}
	own := procfs.CPU(os.Getpid())
	return append(list, cpuTime{"loadtest", own}, cpuTime{"others", procfs.MachineCPU() - known - own})
}
