package agent

import (
	"path/filepath"

	"github.com/frond-edge/frond/edged/jobs"
	"github.com/frond-edge/frond/edged/jobs/imagepull"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/outbox"
)

// buildJobs creates the part that does the steps of jobs.
func buildJobs(f *foundation, down downward, sink *outbox.Outbox) lifecycle.Part {
	puller := imagepull.Puller{Endpoint: runtimeEndpoint(f.cfg)}
	executor := jobs.New(jobs.Config{Node: f.cfg.Node, Dir: filepath.Join(f.cfg.Dir, "jobs")}, down.store.Store, puller,
		jobs.LinuxHost{ImageFolder: puller.Mountpoint}, down.gate, sink, f.log.Named("jobs"))
	return lifecycle.Part{Name: "jobs", Start: executor.Start}
}
