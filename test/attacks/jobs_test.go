package attacks_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// The API paths of jobs.
const (
	tasksPath = "/apis/jobs.frond.io/v1alpha1/nodetasks"
	jobsPath  = "/apis/operations.kubeedge.io/v1alpha2/imageprepulljobs"
)

// heldTask is a task of the victim that no cloudcore takes away: its job does not exist for the controller, because it is of a kind that it does not know.
const heldTask = `
apiVersion: jobs.frond.io/v1alpha1
kind: NodeTask
metadata: {name: task-of-victim}
spec:
  nodeName: NODE
  job: {kind: AttackTest, name: none, uid: none}
`

// TestJobs_ForeignTasksAreRefused: as the stolen node, an attacker reads no job and no task, gives no work to another gateway, and reports no outcome for it.
func TestJobs_ForeignTasksAreRefused(t *testing.T) {
	manifest := strings.ReplaceAll(heldTask, "NODE", victim)
	if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := shared.Kubectl(context.WithoutCancel(t.Context()), manifest, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			t.Log(err) // the cluster ends with the tests
		}
	})
	status := func(ctx context.Context) string {
		text, err := shared.Kubectl(ctx, "", "get", "nodetask", "task-of-victim", "-o", "jsonpath={.metadata.uid} {.status.phase} {.status.reason}")
		if err != nil {
			return err.Error()
		}
		return text
	}
	eventually(t, "the victim has refused a step that it does not know", func(ctx context.Context) string {
		if got := status(ctx); !strings.Contains(got, " Failure this version") {
			return got
		}
		return ""
	})
	before := status(t.Context())
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	checkUnharmed(t, func() {
		for name, r := range jobRequests() {
			if r := th.requestKube(t, r); r.Code != http.StatusForbidden {
				t.Errorf("%s: %d %s %.300s", name, r.Code, r.Error, r.Body)
			}
		}
		th.reportVictimsTask(t, strings.Fields(before)[0])
	})
	if after := status(t.Context()); after != before {
		t.Errorf("the task was %s and is %s", before, after)
	}
}

// jobRequests returns Kubernetes requests that a node may not make.
func jobRequests() map[string]wire.KubeRequest {
	const merge, plain = "application/merge-patch+json", "application/json"
	return map[string]wire.KubeRequest{
		"another's task":    {Method: http.MethodGet, Path: tasksPath + "/task-of-victim"},
		"all tasks":         {Method: http.MethodGet, Path: tasksPath},
		"tasks of another":  {Method: http.MethodGet, Path: tasksPath, Query: ofVictim},
		"all jobs":          {Method: http.MethodGet, Path: jobsPath},
		"an end of a task":  {Method: http.MethodDelete, Path: tasksPath + "/task-of-victim"},
		"another's outcome": {Method: http.MethodPatch, Path: tasksPath + "/task-of-victim", ContentType: merge, Body: []byte(`{"status":{"phase":"Successful"}}`)},
		"work for another": {Method: http.MethodPost, Path: tasksPath, ContentType: plain, Body: []byte(
			`{"apiVersion":"jobs.frond.io/v1alpha1","kind":"NodeTask","metadata":{"name":"thief"},"spec":{"nodeName":"` + victim + `","job":{"kind":"k","name":"n","uid":"u"}}}`)},
		"a secret by its own task": {Method: http.MethodPost, Path: tasksPath, ContentType: plain, Body: []byte(
			`{"apiVersion":"jobs.frond.io/v1alpha1","kind":"NodeTask","metadata":{"name":"thief"},"spec":{"nodeName":"` + stolen +
				`","job":{"kind":"k","name":"n","uid":"u"},"imagePrePull":{"timeoutSeconds":1,"secret":{"namespace":"default","name":"of-` + victim + `"}}}}`)},
		"a job for another": {Method: http.MethodPost, Path: jobsPath, ContentType: plain, Body: []byte(
			`{"apiVersion":"operations.kubeedge.io/v1alpha2","kind":"ImagePrePullJob","metadata":{"name":"thief"},"spec":{"imagePrePullTemplate":{"images":["a"],"nodeNames":["` + victim + `"]}}}`)},
	}
}

// reportVictimsTask reports an outcome of the victim's task, with its UID, one of a task that does not exist, and garbage.
func (th *attacker) reportVictimsTask(t *testing.T, uid string) {
	t.Helper()
	dropped, dead := counterDelta(t, "frond_jobs_reports_dropped_total"), counterDelta(t, "frond_dead_letters_total")
	for name, body := range map[string]string{
		"task-of-victim": `{"metadata":{"name":"task-of-victim"},"status":{"phase":"Successful","reason":"$(reboot)"}}`,
		"task-of-nobody": `{"metadata":{"name":"task-of-nobody"},"status":{"phase":"Successful"}}`,
		"garbage":        `{"metadata":{"name":"../task-of-victim"},"status":{"phase":"Successful"}}`,
	} {
		key := wire.Key{Group: jobs.Group, Resource: jobs.NodeTasksResource, Name: name}
		th.publish(subject.Of(subject.Report, stolen, key), "", []byte(body), "Frond-Version: 1", "Frond-Op: apply", "Frond-UID: "+uid,
			"Frond-Store: thief", "Frond-Order: 2", "Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
	}
	if said := th.flush(t.Context()); said != "" {
		t.Fatal(said)
	}
	awaitCounter(t, "reports of foreign tasks are dropped", dropped, 2)
	awaitCounter(t, "garbage is a dead letter", dead, 1)
}
