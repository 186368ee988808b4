package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/frond-edge/frond/api/restart"
	"github.com/frond-edge/frond/internal/cli"
)

// restartTimeout is longer than the kubelet's longest back-off of 5 minutes.
const restartTimeout = 6 * time.Minute

type restartCommand struct {
	edge       *edgeAPI
	factory    cmdutil.Factory
	containers []string
	output     cli.Output
	timeout    time.Duration
}

// restartedContainer is one container's line of the result.
type restartedContainer struct {
	restart.StoppedContainer
	// NewID is the id of the container that runs now; "" if none does within the timeout.
	NewID    string `json:"newID,omitempty"`
	Restarts int32  `json:"restarts"`
	// Why is the kubelet's reason for a container that does not run.
	Why string `json:"why,omitempty"`
}

func newRestart(e *edgeAPI, f cmdutil.Factory) *cobra.Command {
	r := &restartCommand{edge: e, factory: f}
	cmd := &cobra.Command{
		Use:   "restart POD [-c CONTAINER]",
		Short: "Restart a pod's containers on this gateway",
		Long: `Restart a pod's containers on this gateway. Each is stopped with the pod's grace time, and the kubelet starts it again: the
pod, its address and its volumes stay, and the restart is counted. A container that was restarted a moment ago waits for the
kubelet's back-off. Under the restart policy OnFailure a container is killed, because an end in good order would be final;
under Never nothing is done, and that is an error.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.Run(cmd.Context(), strings.TrimPrefix(strings.TrimPrefix(args[0], "pod/"), "pods/"), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringSliceVarP(&r.containers, "container", "c", nil, "the container; default all but sidecars")
	cmd.Flags().DurationVar(&r.timeout, "timeout", restartTimeout, "how long to wait until they run again")
	r.output.AddFlag(cmd)
	return cmd
}

// Run stops the containers, waits for the new ones, and prints the result of each.
func (r *restartCommand) Run(ctx context.Context, pod string, out io.Writer) error {
	client, err := r.factory.KubernetesClientSet()
	if err != nil {
		return err
	}
	request := client.CoreV1().RESTClient().Post().AbsPath(restart.Path + r.edge.namespace + "/" + pod + "/restart")
	for _, c := range r.containers {
		request = request.Param("container", c)
	}
	answer := request.Do(ctx)
	if err := answer.Error(); err != nil { // in Kubernetes' words, unlike Raw's
		return err
	}
	data, err := answer.Raw()
	if err != nil {
		return err
	}
	var stopped []restart.StoppedContainer
	if err := json.Unmarshal(data, &stopped); err != nil {
		return fmt.Errorf("understand edgecore: %w", err)
	}
	result := make([]restartedContainer, len(stopped))
	for i := range stopped {
		result[i].StoppedContainer = stopped[i]
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	waited := awaitContainers(ctx, client, r.edge.namespace, pod, result)
	if r.output.JSON() {
		err = cli.PrintJSON(out, result)
	} else {
		err = printRestarts(out, r.edge.namespace+"/"+pod, result)
	}
	if waited != nil {
		return waited
	}
	return err
}

// awaitContainers fills in the running containers, and returns when all run.
func awaitContainers(ctx context.Context, client kubernetes.Interface, namespace, pod string, result []restartedContainer) error {
	for {
		seconds := int64(restartTimeout / time.Second)
		in, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", pod).String(), TimeoutSeconds: &seconds,
		})
		if err != nil {
			return fmt.Errorf("see the containers run again: %w", err)
		}
		for event := range in.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && allRun(p, result) {
				in.Stop()
				return nil
			}
		}
		in.Stop()
		if ctx.Err() != nil {
			return fmt.Errorf("not all containers run again: %w", ctx.Err())
		}
	}
}

func allRun(pod *corev1.Pod, result []restartedContainer) bool {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	done := true
	for i := range result {
		r := &result[i]
		for _, c := range all {
			if c.Name != r.Container {
				continue
			}
			_, id, _ := strings.Cut(c.ContainerID, "://")
			r.Restarts, r.NewID, r.Why = c.RestartCount, "", ""
			switch {
			case c.State.Running != nil && id != r.ID:
				r.NewID = id
			case c.State.Waiting != nil:
				r.Why = strings.TrimSpace(c.State.Waiting.Reason + " " + c.State.Waiting.Message)
			}
		}
		done = done && r.NewID != ""
	}
	return done
}

func printRestarts(out io.Writer, pod string, result []restartedContainer) error {
	for _, r := range result {
		how := "stopped"
		switch {
		case r.ID == "":
			how = "did not run"
		case r.Killed:
			how = "killed (restart policy OnFailure)"
		}
		then := fmt.Sprintf("runs as %.13s, restart %d", r.NewID, r.Restarts)
		if r.NewID == "" {
			then = "does not run yet: " + r.Why
		}
		if r.ID != "" {
			how += fmt.Sprintf(" as %.13s", r.ID)
		}
		if _, err := fmt.Fprintf(out, "%s %s: %s, %s\n", pod, r.Container, how, then); err != nil {
			return err
		}
	}
	return nil
}
