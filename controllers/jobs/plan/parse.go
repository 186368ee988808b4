package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/operations"
)

// defaultTolerate is KubeEdge's documented default.
const defaultTolerate = 0.1

// Parse reads an ImagePrePullJob. What is wrong with it is in Job.Fault.
func Parse(o *operations.ImagePrePullJob) Job {
	t := o.Spec.ImagePrePullTemplate
	job := Job{
		Created: o.CreationTimestamp.Time, NodeNames: t.NodeNames, Concurrency: t.Concurrency, Timeout: TimeoutOf(t), Images: len(t.Images),
		Stop: o.Annotations[names.AnnotationJobStop] == "true", Resume: o.Annotations[names.AnnotationJobResume],
	}
	var faults []string
	add := func(err error) {
		if err != nil {
			faults = append(faults, err.Error())
		}
	}
	var err error
	job.Tolerate, err = parseShare(t.FailureTolerate)
	add(err)
	job.Deadline, err = parseDeadline(o.Annotations[names.AnnotationJobDeadline])
	add(err)
	if t.LabelSelector != nil {
		job.Selector, err = metav1.LabelSelectorAsSelector(t.LabelSelector)
		if err == nil && job.Selector.Empty() {
			err = fmt.Errorf("labelSelector is empty: it would select every gateway")
		}
		add(err)
	}
	if len(t.Images) == 0 {
		add(fmt.Errorf("no images"))
	}
	job.Fault = strings.Join(faults, "; ")
	return job
}

// TimeoutOf returns the time limit of one node.
func TimeoutOf(t operations.ImagePrePullTemplate) time.Duration {
	for _, seconds := range []*uint32{t.TimeoutSeconds, t.TimeoutSecondsOnEachNode} {
		if seconds != nil && *seconds > 0 {
			return time.Duration(*seconds) * time.Second
		}
	}
	return defaultTimeout
}

// parseShare reads failureTolerate: 0.1, 10% or nothing.
func parseShare(text string) (float64, error) {
	if text == "" {
		return defaultTolerate, nil
	}
	number, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) {
		return 0, fmt.Errorf("failureTolerate %.20q is no share: write 0.1 or 10%%", text)
	}
	return share, nil
}

func parseDeadline(text string) (time.Duration, error) {
	if text == "" {
		return DefaultDeadline, nil
	}
	deadline, err := time.ParseDuration(text)
	if err != nil || deadline <= 0 { // the default holds if the job has begun already
		return DefaultDeadline, fmt.Errorf("%s: %.20q is no duration above 0, such as 168h", names.AnnotationJobDeadline, text)
	}
	return deadline, nil
}
