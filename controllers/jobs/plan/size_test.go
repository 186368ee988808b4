package plan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/controllers/jobs/plan"
)

// failedTask is a status of a task that failed with the longest texts that are taken over of a report.
func failedTask(images int, text string) jobs.NodeTaskStatus {
	long := strings.Repeat(text, 200/len(text))
	s := jobs.NodeTaskStatus{Phase: operations.NodeFailure, Reason: long}
	for range 4 {
		s.ActionFlow = append(s.ActionFlow, operations.ActionStatus{Action: operations.ActionCheck, Status: metav1.ConditionUnknown, Reason: "a" + long[1:], Time: "2026-03-01T12:00:00.123456789+00:00"})
	}
	for i := range images {
		s.ImageStatus = append(s.ImageStatus, operations.ImageStatus{Image: fmt.Sprintf("%0512d", i), Status: metav1.ConditionFalse, Reason: "i" + long[1:]})
	}
	return s
}

// The status of every job fits into an object of the API, with the spec that it belongs to.
func TestDecide_StatusFitsIntoAnObject(t *testing.T) {
	for _, text := range []string{"x", "<", "é"} { // < is encoded as six bytes
		for _, images := range []int{1, 64} {
			for _, count := range []int{1, 31, plan.MaxNodes} {
				var nodes []string
				for i := range count {
					nodes = append(nodes, fmt.Sprintf("%0253d", i))
				}
				f := newFleet(nodes...)
				f.job.Concurrency, f.job.Images, f.job.Tolerate = plan.MaxNodes, images, 1
				f.job.Resume = strings.Repeat("r", 200<<10)
				f.step()
				for _, task := range f.tasks {
					task.Status = failedTask(images, text)
				}
				f.step()
				data, err := json.Marshal(f.status)
				if err != nil || len(data) > 720<<10 {
					t.Fatalf("%d nodes, %d images, %q: status of %d bytes (%v)", count, images, text, len(data), err)
				}
				if e := f.status.NodeStatus[0]; e.Phase != operations.NodeFailure || e.Reason == "" {
					t.Fatalf("%d nodes, %d images, %q: entry %+v", count, images, text, e)
				}
			}
		}
	}
}

// A text that is in an entry already is not there again; others stay.
func TestDecide_ReasonsAreNotRepeated(t *testing.T) {
	f := newFleet("a")
	f.step()
	f.tasks["a"].Status = jobs.NodeTaskStatus{
		Phase: operations.NodeFailure, Reason: "app:1: no such image",
		ActionFlow: []operations.ActionStatus{{Action: operations.ActionCheck, Reason: "other"}, {Action: operations.ActionPull, Reason: "app:1: no such image"}},
		ImageStatus: []operations.ImageStatus{
			{Image: "app:1", Reason: "no such image"}, {Image: "app:2", Reason: "denied"},
		},
	}
	f.step()
	e := f.status.NodeStatus[0]
	if e.Reason != "app:1: no such image" || e.ActionFlow[0].Reason != "other" || e.ActionFlow[1].Reason != "" || e.ImageStatus[0].Reason != "" || e.ImageStatus[1].Reason != "denied" {
		t.Errorf("entry %+v", e)
	}
	if f.tasks["a"].Status.ActionFlow[1].Reason == "" {
		t.Error("the task in the cache was changed")
	}
}
