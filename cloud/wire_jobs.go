package cloud

import (
	"github.com/frond-edge/frond/controllers/jobs"
	"github.com/frond-edge/frond/controllers/jobs/taskreports"
	"github.com/frond-edge/frond/controllers/jobs/taskstore"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/subject"
)

// buildJobs creates the parts that carry out jobs, and what applies the reports of their steps.
func buildJobs(f *foundation) (*taskreports.Applier, []lifecycle.Part, error) {
	tasks, err := taskstore.New(f.clients.Config)
	if err != nil {
		return nil, nil, err
	}
	log := f.log.Named("jobs")
	controller, err := jobs.New(f.clients.Config, tasks, f.objects, f.groups, f.members, f.events.RecordEvent, f.registry, log)
	if err != nil {
		return nil, nil, err
	}
	latest, err := consume.NewLatestReports(subject.Report, f.hub.nc)
	if err != nil {
		return nil, nil, err
	}
	return taskreports.New(tasks, latest.StillLast, f.registry, log), []lifecycle.Part{
		{Name: "nodetasks", Start: tasks.Start}, {Name: "jobs", Start: controller.Start},
	}, nil
}
