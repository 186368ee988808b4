package join

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/edged/hostsetup"
	"github.com/frond-edge/frond/internal/cli"
)

type resetCommand struct {
	hostsetup.Machine
	yes, keepPods bool
	output        cli.Output
}

// resetResult is the JSON output.
type resetResult struct {
	// Node is the name of this gateway; "" if its configuration could not be read, or it was no gateway.
	Node string `json:"node,omitempty"`
	// Already reports that there was nothing to undo.
	Already bool `json:"already"`
	// Pods counts the pods that were ended; PodsLeft says why some were not.
	Pods     int    `json:"pods"`
	PodsLeft string `json:"podsLeft,omitempty"`
	// Removed are the removed files and folders.
	Removed []string `json:"removed"`
	// Cloud are commands that remove the rest in the cloud.
	Cloud []string `json:"cloud"`
}

// NewReset returns frond reset.
func NewReset() *cobra.Command {
	r := &resetCommand{}
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Undo frond join on this machine",
		Long: `Undo frond join on this machine: edgecore is stopped and its unit removed, its pods are ended, and its configuration, its key and
all that it has stored are removed. What remains: images and the container runtime itself, volumes outside of edgecore's folder,
and in the cloud the Node and its identity (kubectl delete node; frond node revoke).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.Run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&r.keepPods, "keep-pods", false, "leave containers running; their mounts may keep the folder from being removed")
	r.output.AddFlag(cmd)
	machineFlags(cmd, &r.Machine)
	return cmd
}

// Run resets the machine.
func (r *resetCommand) Run(ctx context.Context, in io.Reader, out, talk io.Writer) error {
	result, err := r.undoJoin(ctx, in, talk)
	if err != nil || !r.output.JSON() {
		return err
	}
	return cli.PrintJSON(out, result)
}

func (r *resetCommand) undoJoin(ctx context.Context, in io.Reader, talk io.Writer) (resetResult, error) {
	result := resetResult{Removed: []string{}, Cloud: []string{}}
	if !r.findInstalled(&result, talk) {
		printPhase(talk, "done", "this machine is no gateway: neither %s nor %s is there", r.Config, r.Dir)
		result.Already = true
		return result, nil
	}
	name := result.Node
	if name == "" {
		name = "NAME"
	}
	if !r.yes {
		_, _ = fmt.Fprintf(talk, "This ends the pods of gateway %s and removes its key, %s and %s. Go on? [y/N] ", name, r.Config, r.Dir)
		answer, _ := bufio.NewReader(in).ReadString('\n') // an end of input is no
		if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
			return result, &cli.ExitError{Message: "nothing was changed", Code: 1}
		}
	}
	printPhase(talk, "stop", "edgecore")
	if err := r.Stop(ctx); err != nil {
		return result, err
	}
	if !r.keepPods {
		n, err := r.EndPods(ctx)
		if err != nil {
			result.PodsLeft = err.Error()
			printPhase(talk, "warning", "pods are left: %v", err)
		}
		result.Pods = n
		printPhase(talk, "pods", "%d ended", n)
	}
	printPhase(talk, "remove", "%s, %s", r.Dir, r.Config)
	if err := r.Remove(); err != nil {
		return result, err
	}
	result.Removed = []string{r.Dir, r.Config}
	result.Cloud = []string{"frond node revoke " + name, "kubectl delete node " + name}
	printPhase(talk, "done", "images, the container runtime and volumes elsewhere are left as they are; in the cloud: %s", strings.Join(result.Cloud, ", "))
	return result, nil
}

// findInstalled finds the files to remove, at the paths of the configuration.
func (r *resetCommand) findInstalled(result *resetResult, talk io.Writer) bool {
	was, there, err := r.Installed()
	if err != nil {
		printPhase(talk, "note", "%v", err) // a file that cannot be read is no reason to keep it
	}
	result.Node = was.Node
	if was.Dir != "" {
		r.Dir = was.Dir
	}
	if was.Runtime.Endpoint != "" {
		r.Runtime = was.Runtime.Endpoint
	}
	if was.Runtime.Hollow {
		r.Runtime = hostsetup.Hollow
	}
	_, err = os.Stat(r.Dir)
	return there || err == nil
}
