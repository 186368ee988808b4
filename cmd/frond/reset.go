package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/machine"
)

type reset struct {
	machine.Machine
	yes, keepPods bool
}

func newReset() *cobra.Command {
	r := &reset{}
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Undo frond join on this machine",
		Long: `Undo frond join on this machine: edgecore is stopped and its unit removed, its pods are ended, and its configuration, its key and
all that it has stored are removed. What remains: images and the container runtime itself, volumes outside of edgecore's folder,
and in the cloud the Node and its identity (kubectl delete node; frond node revoke).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.Run(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&r.keepPods, "keep-pods", false, "leave containers running; their mounts may keep the folder from being removed")
	machineFlags(cmd, &r.Machine)
	return cmd
}

// Run resets.
func (r *reset) Run(ctx context.Context, in io.Reader, talk io.Writer) error {
	was, there, err := r.Installed()
	if err != nil {
		phase(talk, "note", "%v", err) // a file that cannot be read is no reason to keep it
	}
	node := was.Node
	if was.Dir != "" {
		r.Dir = was.Dir
	}
	if was.Runtime.Endpoint != "" {
		r.Runtime = was.Runtime.Endpoint
	}
	if was.Runtime.Hollow {
		r.Runtime = machine.Hollow
	}
	if _, err := os.Stat(r.Dir); err != nil && !there {
		phase(talk, "done", "this machine is no gateway: neither %s nor %s is there", r.Config, r.Dir)
		return nil
	}
	if !r.yes {
		_, _ = fmt.Fprintf(talk, "This ends the pods of gateway %s and removes its key, %s and %s. Go on? [y/N] ", node, r.Config, r.Dir)
		answer, _ := bufio.NewReader(in).ReadString('\n') // an end of input is no
		if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
			return &failure{"nothing was changed", 1}
		}
	}
	phase(talk, "stop", "edgecore")
	if err := r.Stop(ctx); err != nil {
		return err
	}
	if !r.keepPods {
		n, err := r.EndPods(ctx)
		if err != nil {
			phase(talk, "warning", "pods are left: %v", err)
		}
		phase(talk, "pods", "%d ended", n)
	}
	phase(talk, "remove", "%s, %s", r.Dir, r.Config)
	if err := r.Remove(); err != nil {
		return err
	}
	phase(talk, "done", "images, the container runtime and volumes elsewhere are left as they are; in the cloud: frond node revoke %[1]s, kubectl delete node %[1]s", node)
	return nil
}
